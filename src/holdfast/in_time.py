"""Calls that may never return: a filesystem that hangs, a pipe that is not read, a store whose host is gone.

Such a call waits in the kernel or in native code, where nothing can be taken back and no signal handler runs; so it
is made in a thread of its own, and the caller continues without it after its timeout.
Does not cover: the thread whose call never returns. It is a daemon, and left behind.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class TooLate(Exception):
    """The call has not returned in its time."""


class UnderWay(Generic[T]):
    """A call that begins now, in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="holdfast-in-time", daemon=True).start()

    def _run(self) -> None:
        try:
            self._answers.put((self._call(), None))
        except BaseException as error:
            self._answers.put((None, error))

    @property
    def is_done(self) -> bool:
        """Whether it has returned or raised, and :meth:`answer` has not taken that yet."""
        return not self._answers.empty()

    def answer(self, seconds: float) -> T:
        """What the call returns or raises, once; raises TooLate when it does neither for this many seconds more.

        Raises whatever a signal handler raises meanwhile, too.
        """
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise TooLate from None
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]


def answers(calls: Mapping[str, Callable[[float], T]], seconds: float) -> Iterator[tuple[str, T | Exception]]:
    """What calls that are under way (`UnderWay.answer`) return or raise, within so many seconds for all together."""
    until = time.monotonic() + seconds
    for name, answer in calls.items():
        try:
            yield name, answer(max(0.0, until - time.monotonic()))
        except Exception as error:
            yield name, error


def within(seconds: float, call: Callable[[], T]) -> T:
    """What the call returns or raises; raises TooLate when it has done neither after this many seconds, or when no
    thread can be started."""
    try:
        under_way = UnderWay(call)
    except RuntimeError as error:
        raise TooLate from error
    return under_way.answer(seconds)
