"""What limits counted steps would give, with times as arguments."""

from __future__ import annotations

from typing import Any

from holdfast.fault_tolerance.limits import Floors, HeartbeatTimeouts
from holdfast.fault_tolerance.step_times import StepTimes, step_times
from tests.monitor.values import START, at, snapshot

NO_FLOORS = Floors(0.0, 0.0)


def board(steps: int, first: float, longest: float, last: float) -> Any:
    times = {
        "first_step_ns": at(first),
        "longest_step_ns": at(longest) - START,
        "last_heartbeat_ns": at(last),
    }
    return snapshot(step=steps, heartbeat_count=steps, **times)


def test_the_longest_of_any_rank_counts() -> None:
    ended = [(board(9, 3.0, 0.5, 20.0), at(20.2) / 1e9), (board(7, 2.0, 1.5, 20.0), at(20.1) / 1e9)]
    assert step_times(ended) == StepTimes(2, 7, 3.0, 1.5)


def test_so_does_the_time_from_the_last_step_to_the_end() -> None:
    (times,) = [step_times([(board(9, 3.0, 0.5, 20.0), at(50) / 1e9)])]
    assert times is not None and abs(times.longest - 30) < 1e-6


def test_ranks_that_speak_for_themselves_or_did_not_get_far_are_left_out() -> None:
    assert step_times([]) is None
    one = board(1, 3.0, 0.0, 3.0)
    assert step_times([(one, at(5) / 1e9), (snapshot(), at(5) / 1e9)]) is None
    assert step_times([(snapshot(step=9, heartbeat_count=9, connected=True), at(5) / 1e9)]) is None


def test_limits_are_learned_as_a_clients_are() -> None:
    times = StepTimes(2, 100, 4.0, 2.0)
    assert times.learned(None, 5.0, NO_FLOORS) == HeartbeatTimeouts(20.0, 10.0, True)
    assert times.learned(HeartbeatTimeouts(40.0, 30.0, True), 5.0, NO_FLOORS) == HeartbeatTimeouts(
        30.0, 20.0, True
    )
    assert times.learned(None, 5.0, Floors()) == HeartbeatTimeouts(300.0, 10.0, True)
