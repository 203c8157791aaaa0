"""A /dev/shm that one process and all that it starts have for themselves, so that test sessions can run side by side.

Two sessions that share /dev/shm cannot tell whose the files in it are, and so cannot check what a test left there. A
mount namespace is one process's own view of the mounted filesystems; making one needs root (CAP_SYS_ADMIN).
Source: unshare(2), mount(2).
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV = 2, 4
MS_REC, MS_PRIVATE = 16384, 1 << 18
MARK = "HOLDFAST_TEST_OWN_SHM"
"""In the environment of everything that sees this /dev/shm: no other test session does."""


def take() -> None:
    """Give this process, single-threaded or from its main thread, a fresh /dev/shm. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(CLONE_NEWNS), "a mount namespace")
    _checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    _checked(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777"), "a tmpfs")
    os.environ[MARK] = "1"


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no {what} for the tests' own /dev/shm: {os.strerror(number)}")
