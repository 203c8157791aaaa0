"""A question to a store that may never answer: its answer, its error, or the reason to wait no longer."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import pytest

from holdfast.fault_tolerance.launcher.nodes.store_call import HostGone, ask


class Told(Exception):
    """What a signal handler raises."""


def _patient(now: float) -> None:
    return None


def test_the_answer_or_the_error_comes_back() -> None:
    assert ask(lambda: 42, _patient) == 42

    def fail() -> int:
        raise RuntimeError("wrong key")

    with pytest.raises(RuntimeError, match="wrong key"):
        ask(fail, _patient)


def test_a_question_without_an_answer_ends_with_the_reason() -> None:
    answered = threading.Event()
    try:
        with pytest.raises(HostGone, match="silent for 5 s"):
            ask(answered.wait, lambda now: "silent for 5 s")
    finally:
        answered.set()  # the thread is left behind by design; here it can end


def test_a_signal_is_heard_while_the_answer_is_missing() -> None:
    answered = threading.Event()

    def told(number: int, frame: FrameType | None) -> None:
        raise Told

    before = signal.signal(signal.SIGUSR1, told)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(Told):
            ask(answered.wait, _patient)
    finally:
        signal.signal(signal.SIGUSR1, before)
        answered.set()
        timer.join()
