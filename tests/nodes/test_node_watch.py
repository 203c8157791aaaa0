"""Is another node gone? Counters and monotonic times are arguments, so every case is a list of looks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.nodes.node_watch import SPINNING, LocalProgress, Neighbour, Rhythm

LIMIT = 10.0
STUCK = LocalProgress(silent=1000.0, cpu=1.0)
TRAINING = LocalProgress(silent=0.2, cpu=1.0)
WITHOUT_BOARDS_IDLE = LocalProgress(silent=None, cpu=0.0)
WITHOUT_BOARDS_SPINNING = LocalProgress(silent=None, cpu=1.0)

progress = st.sampled_from([STUCK, TRAINING, WITHOUT_BOARDS_IDLE, WITHOUT_BOARDS_SPINNING])
# Between two looks of an observer that itself runs; at half the limit exactly, rounding would decide whether it does.
pauses = st.floats(0.05, 0.49 * LIMIT)


@pytest.mark.parametrize(
    ("local", "patience"),
    [
        (LocalProgress(silent=LIMIT / 2, cpu=0.0), LIMIT),
        (LocalProgress(silent=LIMIT / 2 - 0.1, cpu=0.0), float("inf")),
        (TRAINING, float("inf")),
        (STUCK, LIMIT),
        (WITHOUT_BOARDS_IDLE, LIMIT),
        (WITHOUT_BOARDS_SPINNING, SPINNING * LIMIT),
    ],
)
def test_patience_depends_on_what_the_local_ranks_do(local: LocalProgress, patience: float) -> None:
    assert local.patience(LIMIT) == patience


@given(st.lists(st.tuples(pauses, progress), max_size=200), st.integers(0, 2**40))
def test_a_counter_that_moves_is_never_given_up(
    looks: list[tuple[float, LocalProgress]], counter: int
) -> None:
    neighbour, now = Neighbour(LIMIT), 1e6
    for pause, local in looks:
        now, counter = now + pause, counter + 1
        assert neighbour.gone(counter, now, local) is None


@given(st.lists(pauses, min_size=1, max_size=100), st.sampled_from([STUCK, WITHOUT_BOARDS_IDLE]))
def test_a_counter_that_stands_still_is_given_up_at_the_limit_and_not_before(
    looks: list[float], local: LocalProgress
) -> None:
    neighbour, began = Neighbour(LIMIT), 123.0
    assert neighbour.gone(7, began, local) is None
    now = began
    for pause in looks:
        now += pause
        waited = neighbour.gone(7, now, local)
        assert waited == (now - began if now - began >= LIMIT else None)


@given(st.lists(pauses, max_size=300))
def test_local_ranks_that_train_on_forbid_a_restart(looks: list[float]) -> None:
    neighbour, now = Neighbour(LIMIT), 0.0
    for pause in looks:
        now += pause
        assert neighbour.gone(7, now, TRAINING) is None


def test_when_the_local_ranks_stop_later_the_waiting_so_far_counts() -> None:
    """A launcher that is stopped while all train, and whose node then dies: no second full limit is waited for."""
    neighbour = Neighbour(LIMIT)
    for second in range(30):
        assert neighbour.gone(7, float(second), TRAINING) is None
    assert neighbour.gone(7, 30.0, STUCK) == 30.0


def test_ranks_that_spin_without_a_board_get_three_times_the_limit() -> None:
    neighbour = Neighbour(LIMIT)
    given_up = [
        second
        for second in range(100)
        if neighbour.gone(7, float(second), WITHOUT_BOARDS_SPINNING) is not None
    ]
    assert given_up[0] == SPINNING * LIMIT


@given(st.integers(6, 10**6), st.integers(0, 8))
def test_an_observer_that_stood_still_itself_waits_anew(gap: int, looks_before: int) -> None:
    """It was stopped, or the machine paused: the other's counter may have stood still for the same reason."""
    neighbour, now = Neighbour(LIMIT), 50
    for _ in range(looks_before):
        now += 1
        assert neighbour.gone(7, now, STUCK) is None
    now += gap
    seconds = [neighbour.gone(7, now + second, STUCK) for second in range(11)]
    assert seconds == [None] * 10 + [10]


@given(st.integers(0, 5))
def test_one_late_beat_is_enough(beats: int) -> None:
    neighbour, now = Neighbour(LIMIT), 0.0
    for beat in range(beats + 1):
        for _ in range(3):
            now += 3.0
            assert neighbour.gone(beat, now, STUCK) is None


def test_steps_that_take_long_are_no_standstill() -> None:
    rhythm = Rhythm()
    signs = [100.0, 145.0, 190.0]  # a heartbeat every 45 s
    longest = [rhythm.longest(sign, 10.0) for sign in signs]
    assert longest == [10.0, 45.0, 45.0]
    assert LocalProgress(80.0, 1.0, longest[-1]).patience(10.0) == float("inf")
    assert LocalProgress(91.0, 1.0, longest[-1]).patience(10.0) == 10.0


def test_the_same_sign_of_life_seen_again_is_no_rhythm() -> None:
    rhythm = Rhythm()
    assert [rhythm.longest(100.0, 10.0) for _ in range(3)] == [10.0] * 3
