"""What the driver waits for: signals as events, of which none is lost; and its clock."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
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


def test_signals_are_events_in_order(inbox: Inbox) -> None:
    for number in HANDLED:
        send(number)
    assert inbox.wait(0) == [Signal(number) for number in HANDLED]
    assert inbox.wait(0) == []


def test_a_signal_ends_the_wait(inbox: Inbox) -> None:
    code = "import os, signal, sys; sys.stdin.readline(); os.kill(int(sys.argv[1]), signal.SIGTERM)"
    with subprocess.Popen([sys.executable, "-c", code, str(os.getpid())], stdin=subprocess.PIPE) as sender:
        assert sender.stdin
        sender.stdin.close()
        assert inbox.wait(60) == [Signal(signal.SIGTERM)]


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


def test_descriptors_have_callbacks(inbox: Inbox) -> None:
    reader, writer = os.pipe()
    try:
        inbox.watch(reader, lambda: os.read(reader, 1) and "came")
        os.write(writer, b"x")
        assert inbox.wait(60) == ["came"]
        inbox.ignore(reader)
        inbox.ignore(reader)
        os.write(writer, b"x")
        assert inbox.wait(0) == []
    finally:
        os.close(reader)
        os.close(writer)


def test_signals_are_given_back() -> None:
    before = [signal.getsignal(number) for number in HANDLED]
    box = Inbox()
    box.handle(HANDLED)
    box.handle([signal.SIGTERM])  # only this one from now on
    assert [signal.getsignal(number) for number in HANDLED[1:]] == before[1:]
    box.close()
    assert [signal.getsignal(number) for number in HANDLED] == before


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    box = Inbox()
    try:
        box.handle(HANDLED)
        send(signal.SIGHUP)
        assert box.wait(0) == []
    finally:
        box.close()
        signal.signal(signal.SIGHUP, before)


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
