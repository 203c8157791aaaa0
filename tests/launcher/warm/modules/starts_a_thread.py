"""Starts a Python thread when it is imported, which answers questions."""

import queue
import threading

asked: queue.Queue = queue.Queue()
answers: queue.Queue = queue.Queue()


def _answer() -> None:
    while True:
        answers.put(asked.get() * 2)


thread = threading.Thread(target=_answer, daemon=True)
thread.start()


def check() -> None:
    asked.put(21)
    assert answers.get(timeout=5) == 42
    assert thread.is_alive()
    assert thread in threading.enumerate()
