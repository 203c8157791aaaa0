"""A rank of this node as the one who asks for evidence knows it, and which process of it matters.

The registered process may be a shell, a profiler or another program that waits for the Python that trains. The process
that matters is the one that has armed itself (it wrote `<prefix>.armed`), else the nearest Python below a program
that is none, else the registered one.
Does not cover: programs that embed Python and have not armed themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ...fault_tolerance.board import BoardReader
from ...fault_tolerance.processes import proc
from . import children
from .kernel_file import content, link

_PYTHON = ("python", "pypy")
"""How the names of interpreters' files begin."""


@dataclass(frozen=True, slots=True)
class LocalRank:
    """One local rank."""

    rank: int
    local_rank: int
    pid: int
    start_time: int
    """Clock ticks since boot (proc(5)); 0 takes any process with this pid."""
    node: str
    board: BoardReader | None
    prefix: str
    """Of its files beside the board, `<boards>/cycle-<C>/<L>`; empty where it has none."""


Known = tuple[int, int, int, int]
"""Of a rank: its number, its local number, its pid, and the process's start time."""


@contextmanager
def opened(folder: str, node: str, ranks: Iterable[Known]) -> Iterator[list[LocalRank]]:
    """These ranks, each with a reading of its board of its own, which is closed in the end.

    `folder` has the boards of the cycle. A board that cannot be read is evidence too: its rank has none.
    """
    local: list[LocalRank] = []
    try:
        for rank, local_rank, pid, start_time in ranks:
            prefix = os.path.join(folder, str(local_rank))
            board = None
            with suppress(Exception):
                board = BoardReader(f"{prefix}.board")
            local.append(LocalRank(rank, local_rank, pid, start_time, node, board, prefix))
        yield local
    finally:
        for each in local:
            if each.board is not None:
                each.board.close()


@dataclass(frozen=True, slots=True)
class Subject:
    """The process that matters."""

    pid: int
    start_time: int
    note: str = ""
    """Why it is another one than the registered."""


def subject(who: LocalRank) -> Subject:
    """Which process of the rank matters now. Waits for nobody."""
    registered = Subject(who.pid, who.start_time)
    first = proc.stat(who.pid)
    if first is None or (who.start_time and first.start_time != who.start_time):
        return registered
    armed = _armed(who.prefix)
    if armed == who.pid or (armed is None and _is_python(who.pid)):
        return registered
    stats = [
        found for pid in children.below(who.pid) if (found := proc.stat(pid)) and found.state not in "ZX"
    ]
    fits = [each for each in stats if each.pid == armed]
    if not fits and not _is_python(who.pid):
        fits = [each for each in stats if _is_python(each.pid)]
    if not fits:
        return registered
    found = fits[0]
    note = (
        f"Its process {who.pid} is {first.name}; what is told is of pid {found.pid} ({found.name}) below it."
    )
    return Subject(found.pid, found.start_time, note)


def _is_python(pid: int) -> bool:
    """By its file: a script may have given the process its own name."""
    return os.path.basename(link(f"/proc/{pid}/exe")).startswith(_PYTHON)


def _armed(prefix: str) -> int | None:
    """The process that says that it is armed."""
    try:
        told = json.loads(content(f"{prefix}.armed", 4096)) if prefix else None
    except ValueError:
        return None
    pid = told.get("pid") if isinstance(told, dict) else None
    return pid if isinstance(pid, int) else None
