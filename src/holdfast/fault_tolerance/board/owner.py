"""Whose a board is: one process at a time writes it, and a later one only when nobody can be blamed for it.

The monitor ends the process that the launcher admitted, so what a helper of that process writes (an evaluation script
that it starts after its own supervision has ended) must not count as its life. A board is free for the process that
the launcher admitted, for the first one that writes, and for another one when the last writer has ended (a shell
script that starts one program after another). The board of a `RankMonitorServer`, which asks the kernel who writes, is
free for anyone.

Does not cover: two writers at once; that is the work of the lock (`memory`). Processes of different pid namespaces.
"""

from __future__ import annotations

import os

from ..errors import BoardError
from ..processes import proc
from . import layout as L
from .reader import read_identity


def check_free(path: str, page: memoryview, words: memoryview) -> None:
    """BoardError unless this process may write here. `page` is page 0, `words` the rank's part."""
    owner, who = words[L.OWNER], read_identity(page)
    if page[L.P_SUCCESSIVE] or owner in (0, os.getpid()) or (who is not None and who.pid == os.getpid()):
        return
    found = proc.stat(owner)
    if found is not None and found.start_time == words[L.OWNER_START] and found.state not in "ZX":
        raise BoardError(
            f"{path}: this is the board of process {owner}, which still runs; process {os.getpid()} (a child of it?) "
            "is not supervised on its own"
        )


def take_over(words: memoryview) -> None:
    """Make the page this process's own. The sequence number goes on: a reader may be in the middle of a reading."""
    me = os.getpid(), proc.start_time(os.getpid()) or 0
    if (words[L.OWNER], words[L.OWNER_START]) == me:
        return
    _begin_anew(words, me)


def forget(words: memoryview) -> None:
    """What this process has told until now does not count any more; the page stays its own."""
    _begin_anew(words, (words[L.OWNER], words[L.OWNER_START]))


def _begin_anew(words: memoryview, owner: tuple[int, int]) -> None:
    sequence = words[L.SEQUENCE] | 1
    words[L.SEQUENCE] = sequence
    words[L.SEQUENCE + 1 : L.RARE] = memoryview(bytes((L.RARE - 1) * L.WORD)).cast("q")
    words[L.OWNER], words[L.OWNER_START] = owner
    words[L.FIRST_EVENT] = (sequence + 1) >> 1
    words[L.SEQUENCE] = sequence + 1
