"""Whether ranks can be forked from a process that has torch already, on this machine. Pure.

Does not cover: what the script's own modules do when they are imported; that is known once they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...torch_version import NEWEST, OLDEST, release
from ..finding import Finding, note, ok, problem
from ..quantity import count, listed

OLDEST_PYTHON = (3, 10)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and the torch that is installed for it."""

    executable: str
    version: tuple[int, ...]
    prefix: str
    torch: str = ""
    """Its version as the installed package tells it; empty when there is none."""
    error: str = ""
    """Why it could not be asked."""


def python(own: Interpreter, ranks: Interpreter) -> Finding:
    """The launcher's Python, and the one that PYTHON_EXEC names for the ranks."""
    check = "python"
    told = f"{_dotted(own.version)} ({own.executable})"
    if ranks.error:
        return problem(
            check,
            f"PYTHON_EXEC={ranks.executable}: {ranks.error}",
            "unset PYTHON_EXEC, or mend it: it runs the ranks",
        )
    if ranks.version < OLDEST_PYTHON:
        return problem(
            check,
            f"PYTHON_EXEC={ranks.executable} is Python {_dotted(ranks.version)}, older than {_dotted(OLDEST_PYTHON)}",
            "unset PYTHON_EXEC, or let it name a newer one",
        )
    if not same(own, ranks):
        return note(
            check,
            f"{told}; ranks run with another, {_dotted(ranks.version)} ({ranks.executable}), because of PYTHON_EXEC",
            "unset PYTHON_EXEC, unless you mean it",
        )
    return ok(check, told)


def torch(ranks: Interpreter) -> Finding:
    """The torch that the ranks have."""
    check = "torch"
    supported = f"{_dotted(OLDEST)} to {_dotted(NEWEST)}"
    if not ranks.torch:
        return problem(
            check, f"not installed for {ranks.executable}", f"pip install 'torch>={_dotted(OLDEST)}'"
        )
    if release(ranks.torch) < OLDEST:
        return problem(
            check,
            f"{ranks.torch} is too old: supported are {supported}",
            f"pip install 'torch>={_dotted(OLDEST)}'",
        )
    if release(ranks.torch) > NEWEST:
        return note(
            check,
            f"{ranks.torch} is newer than the supported versions, {supported}",
            "try a short job first; --ft-warm-start off depends on less of torch",
        )
    return ok(check, f"{ranks.torch} (supported: {supported})")


def driver(found: str) -> Finding:
    """The sign by which an NVIDIA driver was found; empty without one."""
    return ok("NVIDIA driver", f"present ({found})" if found else "none on this machine")


def warm_start(
    ranks: Interpreter, cold: str, kernel: Sequence[str] = (), hiding: Sequence[str] = ()
) -> Finding:
    """Whether `--ft-warm-start auto` will be warm here. `cold` is why the launcher would not try (empty: it would),
    `kernel` what it lacks, `hiding` what beside the script hides a module that is imported ahead."""
    check = "warm start"
    if ranks.error or not ranks.torch:
        return note(check, "no: there is no torch to import ahead", "see python and torch")
    reasons = [(cold, "nothing, or change that")] if cold else []
    if kernel:
        reasons.append((f"the kernel lacks {listed(kernel)}", "see kernel"))
    if hiding:
        reasons.append((f"{listed(hiding)} beside the script hides the installed one", "rename it"))
    if not reasons:
        return ok(check, "yes: a killed rank's successor has torch imported already (--ft-warm-start auto)")
    return note(
        check,
        f"no, ranks start cold: {'; '.join(why for why, _ in reasons)}",
        "; ".join(do for _, do in reasons),
    )


def refused(found: Mapping[str, str], folder: str) -> Finding:
    """Packages that earlier jobs were not warm with, and why; `folder` is where they have kept that."""
    check = "refused modules"
    if not found:
        where = f"no job that keeps its list in {folder} has told of any"
        return ok(check, where if folder else "none known: there is no place to keep lists in")
    told = [f"{name} ({why})" for name, why in sorted(found.items())]
    return note(
        check,
        f"{count(len(found), 'package')} cannot be imported ahead: {listed(told)}; each rank imports "
        f"{'it' if len(found) == 1 else 'them'} itself",
        f"nothing, though a restart takes longer; remove the lists in {folder} to have them tried again",
    )


def elsewhere(script: str) -> Finding:
    """For a script that another Python is to run."""
    return note(
        "script",
        f"{script}: not looked at, since PYTHON_EXEC names another Python with other modules",
        "run holdfast doctor with that Python",
    )


def same(own: Interpreter, ranks: Interpreter) -> bool:
    """Whether both are one installation, by whatever path."""
    return (own.version, own.prefix) == (ranks.version, ranks.prefix)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
