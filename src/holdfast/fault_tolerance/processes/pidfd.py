"""Signals that reach the process that was meant, or nobody.

A pid alone names nobody: it is recycled. A handle is opened first, the process behind it is compared with the
start time that was noted when it was started, and only then is the handle signalled.
Does not cover: a process that shares the pid *and* the clock tick of its start with the one meant.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from . import proc


@contextmanager
def verified(pid: int, start_time: int) -> Iterator[int | None]:
    """A pidfd for exactly this process, or None when it is gone or the pid now belongs to another one."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        # Checked after the handle exists: from here on the handle cannot come to mean another process.
        yield handle if proc.start_time(pid) == start_time else None
    finally:
        os.close(handle)


def send(handle: int, number: int) -> bool:
    """Signal the process behind a pidfd; False when it has already ended or is another user's by now (set-uid)."""
    try:
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_verified(pid: int, start_time: int, number: int) -> bool:
    """Signal the process that has this pid *and* this start time; False when there is no such process."""
    with verified(pid, start_time) as handle:
        return handle is not None and send(handle, number)
