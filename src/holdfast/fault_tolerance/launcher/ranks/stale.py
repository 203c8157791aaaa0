"""Board directories whose launcher is dead: left behind where launcher and monitor were killed in the same moment.

A launcher holds a lock on a file in its directory for as long as it lives, however it ends; the next one of the same
user removes directories whose lock is free. A lock, not a process id: containers may share /dev/shm and number their
processes each for itself.
Does not cover: directories that were made by hand, or whose lock file somebody removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from contextlib import suppress

OWNER = "owner"
PREFIX = "holdfast-"


def own(directory: str) -> int:
    """A descriptor that holds the directory until it is closed or this process ends. Raises OSError."""
    new = os.path.join(directory, f"{OWNER}.new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(new, os.path.join(directory, OWNER))  # from here on others look at it, and find it locked
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def sweep(base: str) -> list[str]:
    """Remove what dead launchers of this user left in `base`; returns the directories. Raises nothing."""
    removed = []
    with suppress(OSError):
        for entry in os.scandir(base):
            if entry.name.startswith(PREFIX) and is_stale(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(entry.path)
    return removed


def is_stale(directory: str) -> bool:
    """Whether it is a directory of this user whose launcher is dead. Raises nothing."""
    try:
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        descriptor = os.open(os.path.join(directory, OWNER), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
