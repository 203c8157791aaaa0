"""The processes below a rank: data loader workers, programs that it started.

Always holds: looking at them waits for none of them, but for their command lines, which :func:`commands` reads and
which wait for a process that is busy with its own memory.
Does not cover: processes that made themselves init's children.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...fault_tolerance.processes import proc
from ..evidence import Child
from .kernel_file import content, names
from .process import Used, used_by

Look = tuple[proc.Stat, str, Used]
"""A child at one moment: its state, wait channel and use of the processors."""

MOST = 64
LENGTH = 200
"""Characters of a command."""
_MOST_LOOKED_AT = 512


def below(pid: int) -> tuple[int, ...]:
    """The pids below a process, the nearest first."""
    found: list[int] = []
    queue = [pid]
    while queue and len(found) < _MOST_LOOKED_AT:
        nearest = [child for parent in queue for child in _children(parent)]
        queue = [child for child in dict.fromkeys(nearest) if child not in found and child != pid]
        found += queue
    return tuple(found) if found or _shown(pid) else _by_the_parents(pid)


def _children(pid: int) -> list[int]:
    """Each thread has its own: a data loader's workers are children of the thread that started them."""
    texts = (proc.one_read(f"/proc/{pid}/task/{thread}/children") for thread in names(f"/proc/{pid}/task"))
    return [int(word) for text in texts for word in text.split()]


def _shown(pid: int) -> bool:
    """Whether this kernel shows children at all."""
    return "children" in names(f"/proc/{pid}/task/{pid}")


def _by_the_parents(pid: int) -> tuple[int, ...]:
    return tuple(sorted(proc.descendants({pid}, proc.all_stats())))


def sample(pids: Sequence[int]) -> dict[int, Look]:
    """State, wait channel and use of the processors, of those that are there."""
    found = {}
    for pid in pids[:MOST]:
        stat = proc.stat(pid)
        if stat is not None:
            ticks = Used(stat.cpu_ticks / proc.TICKS_PER_SECOND, 0)
            main = used_by(pid, pid, stat.cpu_ticks) if stat.threads == 1 else None
            found[pid] = stat, proc.wait_channel(pid), main or ticks
    return found


def children(
    first: Mapping[int, Look],
    last: Mapping[int, Look],
    told: Mapping[int, str],
) -> tuple[Child, ...]:
    """What two samples say. A child without a command in `told` has its program's name."""
    found = []
    for pid, (stat, channel, used) in last.items():
        before = first[pid][2].seconds if pid in first else used.seconds
        command = told.get(pid) or f"[{stat.name}]"
        found.append(Child(pid, command, stat.state, channel, round(max(used.seconds - before, 0.0), 6)))
    return tuple(found)


def command(pid: int) -> str:
    """The command line in one line, cut; may wait. '' where there is none (a zombie, a thread of the kernel)."""
    text = content(f"/proc/{pid}/cmdline", 4 * LENGTH)
    return " ".join(text.replace("\0", " ").split())[:LENGTH]


def commands(pids: Iterable[int], told: dict[int, str]) -> None:
    """Puts the command of each into `told`, as it comes; may never return."""
    for pid in pids:
        told[pid] = command(pid)
