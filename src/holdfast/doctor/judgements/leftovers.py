"""What dead jobs of this user left on this machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..finding import Finding, note, ok, problem
from ..quantity import GIB, count, duration, listed, size

MANY_RUNS = 200
MUCH = GIB


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process of a job whose launcher is dead, and its command line."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class Runs:
    """The run directories of jobs that chose none."""

    folders: Sequence[str]
    number: int = 0
    size: int = 0
    """Bytes."""
    oldest: float | None = None
    """Age in seconds."""


def boards(dead: Sequence[str], alive: int) -> Finding:
    """Board directories whose launcher is dead, and how many belong to jobs that run."""
    check = "dead jobs' boards"
    running = f"{count(alive, 'job')} of this user {'runs' if alive == 1 else 'run'} here now"
    if not dead:
        return ok(check, f"none; {running}")
    return note(
        check,
        f"{count(len(dead), 'directory', 'directories')} of killed launchers: {listed(dead)}; {running}",
        "nothing: the next ft_launcher of this user removes them",
    )


def orphans(found: Sequence[Orphan]) -> Finding:
    """Processes of dead jobs."""
    check = "orphaned ranks"
    if not found:
        return ok(check, "none")
    told = [f"{each.pid} ({each.command[:60]})" for each in found]
    return problem(
        check,
        f"{count(len(found), 'process', 'processes')} of dead jobs still {'runs' if len(found) == 1 else 'run'}: "
        f"{listed(told)}. GPU memory, ports and files may be theirs",
        f"look at them, then kill {' '.join(str(each.pid) for each in found[:20])}",
    )


def runs(found: Runs) -> Finding:
    """Run directories, which nobody removes."""
    check = "old runs"
    where = listed(found.folders)
    if not found.number:
        return ok(check, f"none in {where}" if where else "none")
    age = "" if found.oldest is None else f", the oldest {duration(found.oldest)} old"
    told = f"{count(found.number, 'run directory', 'run directories')} in {where}, {size(found.size)}{age}"
    if found.number > MANY_RUNS or found.size > MUCH:
        return note(check, told, "delete those that you no longer need: nobody else does")
    return ok(check, told)
