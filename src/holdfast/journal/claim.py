"""Whose journal it is: a launcher locks its node's journal, so that a second one keeps its records somewhere else.

Two jobs of one node name in one journal would each be read as the end of the other. The lock is on an empty file
beside the journal (some network filesystems would keep readers out of a locked one) and ends with its process, however
that ends: a requeued job finds the directory free.

What always holds: no job waits for a lock, or stops for want of one.

Does not cover: filesystems that cannot lock, or only among the processes of one machine. There two launchers of one
node name write into one journal; its lines stay whole.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

from ..in_time import TooLate, within
from .run_dir import RunDirError, make_private
from .writer import file_name

ANSWER = 2.0
"""Seconds that the filesystem may take for a lock; then the job goes on without one."""

ALSO = "also-"
"""How the sub-directory of a second launcher begins; its process id follows."""


class Claim:
    """The directory to write to, `run_dir`, and the lock on this node's journal in it until `close` or the end."""

    def __init__(self, run_dir: str, descriptor: int | None) -> None:
        self.run_dir = run_dir
        self._descriptor = descriptor

    def close(self) -> None:
        """Give the lock back; waits for at most a second."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError, TooLate):
                within(1.0, lambda: os.close(descriptor))


def claim(run_dir: str, node: str, warn: Callable[[str], None]) -> Claim:
    """Lock the journal of `node` in `run_dir`, or, where a live launcher has it, that in a sub-directory of our own.

    Raises nothing; `warn` gets one line when the directory is another one.

    Does not cover: a filesystem that cannot lock, which is used as it is.
    """
    try:
        return Claim(run_dir, _locked(run_dir, node))
    except BlockingIOError:
        own = os.path.join(run_dir, f"{ALSO}{os.getpid()}")
    try:
        make_private(own)
        found = Claim(own, _locked(own, node))
    except (RunDirError, BlockingIOError):
        found = Claim(run_dir, None)
    who = f"another launcher of node {node} is at work in {run_dir}"
    if found.run_dir == own:
        warn(f"{who} and holds its journal: that of this job is in {own}")
    else:
        warn(f"{who}, and {own} cannot be used: both jobs write into one journal, which will read wrong")
    return found


def _locked(run_dir: str, node: str) -> int | None:
    """A descriptor that holds the lock; None where there is no locking. Raises `BlockingIOError` when it is taken."""
    with suppress(TooLate):
        return within(ANSWER, lambda: _lock(os.path.join(run_dir, f".{file_name(node)}.lock")))
    return None


def _lock(path: str) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        return None
    try:
        # Not fcntl's own locks: those of a process end when it closes any descriptor of the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor
