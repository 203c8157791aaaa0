"""Questions to the rendezvous store that may never be answered: its host can be stopped, or be gone without a word.

The caller waits in Python, where signals are heard, until the answer comes or the host is given up.
Does not cover: a question that is under way when its host is given up; see `holdfast.in_time`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.in_time import TooLate, UnderWay

T = TypeVar("T")
LOOK = 0.1  # seconds between two looks at whether the host is given up


class HostGone(Exception):
    """The store does not answer; the text says for how long."""


def ask(question: Callable[[], T], given_up: Callable[[float], str | None]) -> T:
    """The answer, or what the question raised. `given_up` gets monotonic seconds and says why to wait no longer.

    Raises HostGone with that reason, and whatever a signal handler raises meanwhile.
    """
    call = UnderWay(question)
    while True:
        try:
            return call.answer(LOOK)
        except TooLate:
            if reason := given_up(time.monotonic()):
                raise HostGone(reason) from None
