"""The signals that a preemption callback listens for, and their handlers."""

from __future__ import annotations

import multiprocessing
import signal
import time
from typing import Any

import pytest

from holdfast.callbacks.signals import Notices
from holdfast.ptl_resiliency import PreemptionCallback

USR1, TERM = int(signal.SIGUSR1), int(signal.SIGTERM)


@pytest.mark.parametrize("sig", [USR1, signal.SIGUSR1, "SIGUSR1", "usr1", " SigUsr1 "])
def test_a_signal_in_all_its_spellings(sig: Any) -> None:
    assert PreemptionCallback(sig).sig == PreemptionCallback(sig=sig).sig == USR1


def test_sigterm_unless_told() -> None:
    assert PreemptionCallback().sig == PreemptionCallback(None).sig == TERM


@pytest.mark.parametrize(
    ("sig", "why"),
    [
        (signal.SIGKILL, "SIGKILL asks for no stop: it cannot be caught"),
        ("SIGSTOP", "it cannot be caught"),
        (signal.SIGSEGV, "it means a crash"),
        ("CHLD", "it says that a child ended"),
        (signal.SIGRTMIN, "a real-time signal is not possible here"),
        (signal.SIGRTMIN + 1, "ft_launcher has no name by which to pass it on"),
        ("RTMAX", "a real-time signal"),
        ("SIGNOTHING", "no signal; allowed is a number or a name"),
        (0, "no signal"),
        (4711, "no signal"),
        (True, "no signal"),
        (15.0, "no signal"),
        ("", "no signal"),
    ],
)
def test_what_is_no_signal_to_listen_for(sig: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PreemptionCallback(sig)


def test_a_handler_notes_the_first_signal_and_tells_of_each() -> None:
    notices, told = Notices({USR1, TERM}), []
    notices.tell = told.append
    assert notices.install() and notices.install()
    signal.raise_signal(USR1)
    signal.raise_signal(TERM)
    notices.restore()
    notices.restore()
    assert (notices.number, told) == (USR1, [USR1, TERM])
    assert signal.getsignal(USR1) == signal.getsignal(TERM) == signal.SIG_DFL


def test_a_signal_that_nobody_needed_may_do_what_it_would_have_done() -> None:
    came: list[int] = []
    signal.signal(USR1, lambda number, frame: came.append(number))
    notices = Notices({USR1})
    notices.install()
    notices.restore()
    notices.raise_again()
    assert came == []
    notices = Notices({USR1})
    notices.install()
    signal.raise_signal(USR1)
    notices.restore()
    notices.raise_again()
    assert came == [USR1]


def _other(_number: int, _frame: object) -> None:
    """The handler of another library."""


def test_a_handler_that_another_set_meanwhile_stays() -> None:
    notices = Notices({USR1})
    notices.install()
    signal.signal(USR1, _other)
    notices.restore()
    assert signal.getsignal(USR1) is _other


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_at_once_none_stays(order: tuple[int, int]) -> None:
    signal.signal(USR1, _other)
    both = Notices({USR1}), Notices({USR1})
    for each in both:
        each.install()
    for index in order:
        both[index].restore()
    assert signal.getsignal(USR1) is _other


def _run(runs: Any) -> None:
    runs.set()
    while True:
        time.sleep(0.01)


def test_a_forked_child_takes_the_signal_as_it_would_without_us() -> None:
    notices = Notices({TERM})
    notices.install()
    try:
        context = multiprocessing.get_context("fork")
        runs = context.Event()
        child = context.Process(target=_run, args=(runs,))
        child.start()
        assert runs.wait(30)
        child.terminate()
        child.join(30)
        assert child.exitcode == -TERM
    finally:
        notices.restore()
