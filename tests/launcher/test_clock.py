"""The driver's clock: time in which the launcher could not act does not count."""

import itertools

import pytest

from holdfast.fault_tolerance.launcher.driver import Clock

SECOND = 10**9


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
