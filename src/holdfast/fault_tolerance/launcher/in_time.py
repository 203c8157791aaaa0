"""Calls that may never return: a filesystem that hangs, a pipe that nobody reads.

Such a call waits in the kernel, where nothing can be taken back; so it is made in a thread of its own, and the
caller goes on without it when its time is over.
Does not cover: the thread whose call never returns. It is a daemon, and left behind.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TooLate(Exception):
    """The call has not returned in its time."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """What the call returns or raises; raises TooLate when it has done neither after this many seconds."""
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, name="holdfast-in-time", daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TooLate from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
