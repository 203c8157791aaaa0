"""Small files of the kernel, read whole and fast.

Always holds: what cannot be read is empty. Reading ``stat``, ``status``, ``statm``, ``wchan``, ``schedstat`` and the
links in ``fd`` waits for no process; ``cmdline``, ``environ`` and ``maps`` wait for one that is busy with its own
memory, and ``stack`` and ``syscall`` for one that is just becoming another program.
Does not cover: which of these is read when; `rank_look` sees to that.
"""

from __future__ import annotations

import os

MOST = 1 << 20
"""Bytes of one file."""
_ONE_READ = 1 << 15


def content(path: str, most: int = MOST) -> str:
    """Its text, at most `most` bytes; '' where it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        parts = [os.read(handle, min(most, _ONE_READ))]
        while parts[-1] and (left := most - sum(map(len, parts))) > 0:
            parts.append(os.read(handle, min(left, _ONE_READ)))
    except OSError:
        return ""
    finally:
        os.close(handle)
    return b"".join(parts).decode(errors="replace")


def names(folder: str) -> list[str]:
    """What is in a folder of ``/proc``; empty where it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link(path: str) -> str:
    """Where a link leads, without going there: a hung file server would hold us. '' where it cannot be read."""
    try:
        return os.fsencode(os.readlink(path)).decode(errors="replace")
    except OSError:
        return ""
