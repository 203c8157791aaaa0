"""What the driver waits for: signals as events, of which none is lost; and its clock."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest

from holdfast.fault_tolerance.launcher.control.messages import Signal
from holdfast.fault_tolerance.launcher.driver import Clock
from holdfast.fault_tolerance.launcher.inbox import Inbox, Interrupted

HANDLED = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    box = Inbox()
    box.handle(HANDLED)
    yield box
    box.close()


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_interrupts_the_wait_for_other_nodes(inbox: Inbox) -> None:
    with pytest.raises(Interrupted) as stop, inbox.interruptible():
        send(signal.SIGHUP)
        pytest.fail("not interrupted")
    assert stop.value.number == signal.SIGHUP
    send(signal.SIGTERM)
    assert inbox.wait(0) == [Signal(signal.SIGTERM)], "outside it is an event again"


def test_a_signal_just_before_interrupts_it_at_once(inbox: Inbox) -> None:
    send(signal.SIGTERM)
    with pytest.raises(Interrupted), inbox.interruptible():
        pytest.fail("not interrupted")


def test_other_events_wait_meanwhile(inbox: Inbox) -> None:
    inbox.post("news")
    with inbox.interruptible():
        pass
    assert inbox.wait(0) == ["news"]


def test_what_is_only_passed_on_is_dropped_while_no_rank_runs(inbox: Inbox) -> None:
    send(signal.SIGUSR1)
    with inbox.interruptible():
        send(signal.SIGUSR1)
    assert inbox.wait(0) == []


# -- the driver's clock --------------------------------------------------------------------------------------

SECOND = 10**9


@pytest.mark.check
@pytest.mark.parametrize(
    ("steps", "passed"),
    [
        # (seconds that the launcher meant to sleep, seconds that went by)
        ([(0.0, 0.5), (1.0, 1.0)], 1.5),
        ([(1.0, 0.2)], 0.2),  # woken by an event
        ([(1.0, 1.9)], 1.9),  # a busy machine
        ([(1.0, 5.0)], 0.0),  # suspended in a sleep
        ([(0.0, 4.0)], 0.0),  # suspended, or blocked, in an action
        ([(0.0, 4.0), (1.0, 1.0)], 1.0),
    ],
)
def test_clock_leaves_out_time_without_action(steps: list[tuple[float, float]], passed: float) -> None:
    readings = itertools.accumulate((int(took * SECOND) for _, took in steps), initial=100 * SECOND)
    clock = Clock(iter([100 * SECOND, *readings]).__next__)
    began = last = clock.now()
    for wait, _ in steps:
        clock.sleeps(wait)
        now = clock.now()
        assert now >= last
        last = now
    assert last - began == pytest.approx(passed)
