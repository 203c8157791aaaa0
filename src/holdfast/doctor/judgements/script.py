"""What a training script's imports say about warm start, and about its start at all. Pure.

Does not cover: imports by names that are computed, and modules that are made while the program runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..finding import Finding, note, ok, problem
from ..quantity import count, listed


@dataclass(frozen=True, slots=True)
class Imports:
    """Where the modules come from that a script and the project's modules below it import. All are top-level names."""

    installed: Sequence[str] = ()
    """Third-party packages."""
    project: Sequence[str] = ()
    """Modules of the user's own: whatever is neither installed nor Python's."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """What cannot be found, and the `file:line` that needs it as soon as it is imported."""
    perhaps_missing: Mapping[str, str] = field(default_factory=dict)
    """What cannot be found, and is imported in a function or where its want is caught."""
    shadowing: Mapping[str, str] = field(default_factory=dict)
    """Files beside the script with the name of an installed module or one of Python's, by that name."""
    needed: Sequence[str] = ()
    """Those of them that torch or this command itself imports."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Files that are no Python that can be read, and why."""
    cut: bool = False
    """Whether there were more files than were looked at."""


def imports(name: str, found: Imports, learned: int | None = None) -> Finding:
    """What of the script is imported ahead, and what anew; `learned` is how many modules an earlier job has listed."""
    check = "script"
    if found.unread:
        told = [f"{path}: {why}" for path, why in found.unread.items()]
        return problem(check, f"{listed(told)}", "mend it: ranks will fail at once")
    ahead = "no installed module to import ahead"
    if found.installed:
        ahead = f"{listed(found.installed)} imported ahead once a job has learned it"
    if learned is not None:
        ahead = (
            f"{count(learned, 'module')} learned by an earlier job, imported ahead where they are installed"
        )
    anew = f"{listed(found.project)} imported anew by each rank, as edits must show" if found.project else ""
    more = "; more modules were not looked at" if found.cut else ""
    return ok(check, "; ".join(part for part in (f"{name}: {ahead}", anew) if part) + more)


def missing(found: Imports) -> Finding:
    """Modules that are not there."""
    check = "missing modules"
    if found.missing:
        told = [f"{name} ({where})" for name, where in found.missing.items()]
        return problem(
            check, f"not found: {listed(told)}", "install what the script imports, or mend PYTHONPATH"
        )
    if found.perhaps_missing:
        told = [f"{name} ({where})" for name, where in found.perhaps_missing.items()]
        return note(
            check,
            f"not found, and imported only in a function or on trial: {listed(told)}",
            "install it if your training comes there",
        )
    return ok(check, "none")


def shadowing(found: Imports) -> Finding:
    """Files that stand in the way of installed modules."""
    check = "shadowed modules"
    if not found.shadowing:
        return ok(check, "none")
    told = [found.shadowing[name] for name in sorted(found.shadowing)]
    if found.needed:
        return problem(
            check,
            f"{listed([found.shadowing[name] for name in found.needed])}: ranks import "
            f"{'it' if len(found.needed) == 1 else 'them'} in place of {listed(found.needed)}, which torch and "
            "Holdfast need",
            "rename it",
        )
    return note(
        check,
        f"{listed(told)} {'stands' if len(told) == 1 else 'stand'} before {count(len(told), 'installed module')} of "
        "the same name, which warm start then leaves out",
        "rename it, unless you mean it",
    )
