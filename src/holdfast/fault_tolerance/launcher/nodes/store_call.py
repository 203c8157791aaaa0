"""Questions to the rendezvous store that may never be answered: its host can be stopped, or be gone without a word.

torch's store client waits in native code, where no signal handler runs; so the question is asked in a thread of its
own, and the caller waits in Python, until the answer comes or the host is given up.
Does not cover: the thread whose answer never comes. It is a daemon, and left behind.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LOOK = 0.1  # seconds between two looks at whether the host is given up


class HostGone(Exception):
    """The store does not answer; the text says for how long."""


def ask(question: Callable[[], T], given_up: Callable[[float], str | None]) -> T:
    """The answer, or what the question raised. `given_up` gets monotonic seconds and says why to wait no longer.

    Raises HostGone with that reason, and whatever a signal handler raises meanwhile.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((question(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, name="holdfast-store-call", daemon=True).start()
    while True:
        try:
            answer, error = answers.get(timeout=LOOK)
        except queue.Empty:
            if reason := given_up(time.monotonic()):
                raise HostGone(reason) from None
            continue
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]
