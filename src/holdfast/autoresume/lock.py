"""One chain for one run directory: a lock that ends with its process, however that ends.

The lock is on an empty file of its own, since some network filesystems keep readers out of a locked one. It is
flock(2): on NFS Linux makes it a lock of the server, so that it holds between machines.

What always holds: nobody waits for it. A holder that was killed, or whose machine has died, blocks nobody once the
filesystem knows (NFS: when its lease is over, about 90 s).

Does not cover: filesystems without locks. `take` says so, and the caller goes by what the ledger tells of the keeper.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from ..fault_tolerance.errors import HoldfastError
from ..in_time import TooLate, within

NAME = ".autoresume.lock"

ANSWER = 10.0
"""Seconds that the filesystem may take."""


class Held(HoldfastError):
    """Another process has the lock. Who it is stands in the ledger."""


class Unlockable(HoldfastError):
    """The filesystem cannot lock, or has not answered. The message is one line: why."""


class Lock:
    """A lock that is held until `close` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Give it back. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take(run_dir: str, name: str = NAME) -> Lock:
    """Lock the run directory. Raises `Held`, and `Unlockable` where there is no telling."""
    path = os.path.join(run_dir, name)
    try:
        return Lock(within(ANSWER, lambda: _lock(path)))
    except BlockingIOError:
        raise Held(f"{run_dir} is taken") from None
    except TooLate:
        raise Unlockable(f"{path}: its filesystem has not answered for {ANSWER:g} s") from None
    except OSError as error:
        raise Unlockable(f"{path}: {error.strerror}") from None


def _lock(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        # Not fcntl's own locks: those of a process end when it closes any descriptor of the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
