"""Ending a hung rank: the configured signal, SIGKILL when that was not enough, and no other process."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from holdfast.fault_tolerance.monitor.watch import Terminator
from tests.processes import Spawner, wait_until

from .node import identity, state, stubborn, victim
from .values import SECOND

NOW = 1000 * SECOND


def test_another_signal_comes_first_and_sigkill_after_the_patience(spawn: Spawner) -> None:
    rank = stubborn(spawn)
    who = identity(rank)
    terminator = Terminator(signal.SIGTERM, grace=5.0)
    assert terminator.terminate(who, NOW) == "SIGTERM"
    assert terminator.next_ns == NOW + 5 * SECOND
    assert terminator.kill_expired(NOW + 5 * SECOND - 1) == []
    assert rank.returncode is None
    assert terminator.kill_expired(NOW + 5 * SECOND) == [who]
    assert rank.wait() == -signal.SIGKILL
    assert terminator.next_ns is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_rank_gets_it_too(spawn: Spawner, number: signal.Signals) -> None:
    rank = victim(spawn)
    rank.send_signal(signal.SIGSTOP)
    wait_until(lambda: state(rank) == "T")
    assert Terminator(number, grace=5.0).terminate(identity(rank), NOW) == number.name
    assert rank.wait() == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_with_the_pid_and_another_start_time_is_nobody(
    spawn: Spawner, number: signal.Signals
) -> None:
    other = victim(spawn)
    other.send_signal(signal.SIGSTOP)
    wait_until(lambda: state(other) == "T")
    meant = replace(identity(other), start_time=identity(other).start_time - 1)
    terminator = Terminator(number, grace=0.0)
    assert terminator.terminate(meant, NOW) is None
    assert terminator.kill_expired(NOW + SECOND) == []
    assert state(other) == "T", "not even SIGCONT may reach it"


def test_patience_does_not_run_out_while_the_world_stands_still(spawn: Spawner) -> None:
    rank = stubborn(spawn)
    terminator = Terminator(signal.SIGTERM, grace=5.0)
    terminator.terminate(identity(rank), NOW)
    terminator.extend(100 * SECOND)
    assert terminator.next_ns == NOW + 105 * SECOND
    assert terminator.kill_expired(NOW + 104 * SECOND) == []
