"""Handles SIGTERM and SIGUSR2 from its import on, and keeps what was in force before."""

import os
import signal

got = []
numbers = (signal.SIGTERM, signal.SIGUSR2)
before = {number: signal.signal(number, lambda number, frame: got.append(number)) for number in numbers}  # type: ignore[has-type]


def check() -> None:
    assert list(before.values()) == [signal.SIG_DFL] * 2
    for number in numbers:
        os.kill(os.getpid(), number)
    assert got == list(numbers)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
