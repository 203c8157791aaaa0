"""Whether ranks can be forked from a process that has torch already, on this machine. Pure.

Does not cover: what the script's own modules do when they are imported; that is known once they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..finding import Finding, note, ok, problem
from ..quantity import count, listed

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 13)
TESTED_TORCH = "2.13"


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


@dataclass(frozen=True, slots=True)
class Refused:
    """A module that an earlier job found that it cannot be forked with."""

    module: str
    reason: str


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
            "unset PYTHON_EXEC, unless you mean it: warm start needs one Python for both",
        )
    return ok(check, told)


def torch(ranks: Interpreter) -> Finding:
    """The torch that the ranks have."""
    check = "torch"
    if not ranks.torch:
        return problem(
            check, f"not installed for {ranks.executable}", f"pip install 'torch>={_dotted(OLDEST_TORCH)}'"
        )
    if _release(ranks.torch) < OLDEST_TORCH:
        return problem(
            check,
            f"{ranks.torch} is older than what ft_launcher is made for ({TESTED_TORCH})",
            f"pip install 'torch>={_dotted(OLDEST_TORCH)}'",
        )
    if _release(ranks.torch) != OLDEST_TORCH:
        return note(
            check,
            f"{ranks.torch}; Holdfast was tested with {TESTED_TORCH} only",
            "try a short job first; with --ft-warm-start off there is less that can differ",
        )
    return ok(check, f"{ranks.torch}, a version that was tested")


def driver(found: str) -> Finding:
    """The sign by which an NVIDIA driver was found; empty without one."""
    return ok("NVIDIA driver", f"present ({found})" if found else "none on this machine")


def warm_start(
    own: Interpreter, ranks: Interpreter, found_driver: str, kernel: Sequence[str], shadowing: Sequence[str]
) -> Finding:
    """Whether `--ft-warm-start auto` will be warm here; `kernel` and `shadowing` are what speaks against it there."""
    check = "warm start"
    if ranks.error or not ranks.torch:
        return note(check, "no: there is no torch to import ahead", "see above")
    reasons = []
    if not same(own, ranks):
        reasons.append(("PYTHON_EXEC names another Python", "unset PYTHON_EXEC"))
    if kernel:
        reasons.append((f"the kernel lacks {listed(kernel)}", "see kernel"))
    if shadowing:
        reasons.append(
            (f"{listed(shadowing)} beside the script hides a module that torch needs", "rename it")
        )
    if found_driver:
        reasons.append(
            (
                "with an NVIDIA driver auto stays cold, since forking was not tested with a GPU",
                "nothing, or --ft-warm-start on if you want to try it",
            )
        )
    if not reasons:
        return ok(check, "yes: a killed rank's successor has torch imported already (--ft-warm-start auto)")
    return note(
        check,
        f"no, ranks start cold: {'; '.join(why for why, _ in reasons)}",
        "; ".join(do for _, do in reasons),
    )


def refused(found: Sequence[Refused], run_dir: str) -> Finding:
    """Modules that the last job was not warm with."""
    check = "refused modules"
    if not found:
        return ok(check, f"none in {run_dir}" if run_dir else "no earlier job has told of any")
    told = [f"{each.module} ({each.reason})" for each in found]
    return note(
        check,
        f"{count(len(found), 'module')} cannot be imported ahead: {listed(told)}; each rank imports "
        f"{'it' if len(found) == 1 else 'them'} itself (from {run_dir})",
        "nothing; a restart takes their import longer",
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


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers: (2, 13) of `2.13.0+cpu`. What is none counts as 0."""
    parts = [*version.split("+")[0].split("."), "0", "0"][:2]
    return tuple(int("".join(sign for sign in part if sign.isdecimal()) or 0) for part in parts)
