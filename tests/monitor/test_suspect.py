"""Whom a passed limit is held against, from how the ranks of the node look."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.fault_tolerance.monitor.suspect import whom_it_waits_for

WAITED = 10.0


def rank(number: int, **looks: Any) -> dict[str, Any]:
    plain = {"state": "S", "step": 7, "silent": WAITED, "connected": True, "heartbeats": 3, "finished": False}
    return {"rank": 10 + number, "local_rank": number, **plain, **looks}


def others(*found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {each["local_rank"]: each for each in found}


def test_a_stopped_rank_is_what_the_others_wait_for() -> None:
    found = whom_it_waits_for(rank(0), WAITED, others(rank(1), rank(2, state="T")))
    assert found == (2, "Rank 12 is stopped (state T)")


def test_a_rank_that_is_a_step_behind_is_what_the_others_wait_for() -> None:
    found = whom_it_waits_for(rank(0), WAITED, others(rank(1, step=6), rank(2, step=5), rank(3)))
    assert found == (2, "Rank 12 is behind, at step 5 of 7")


def test_counted_steps_tell_who_is_behind() -> None:
    found = whom_it_waits_for(rank(0, connected=False), WAITED, others(rank(1, step=6, connected=False)))
    assert found == (1, "Rank 11 is behind, at step 6 of 7")


def test_stopped_counts_for_more_than_behind() -> None:
    found = whom_it_waits_for(rank(0), WAITED, others(rank(1, step=5), rank(2, state="t")))
    assert found is not None and found[0] == 2


@pytest.mark.parametrize(
    "looks",
    [
        {},
        {"step": 8},
        {"step": None},
        {"step": 6, "silent": 1.0},  # it works
        {"state": "T", "silent": 1.0},  # stopped only a moment ago, so it is not why
        {"state": "T", "finished": True},
        {"state": "T", "connected": False, "heartbeats": 0},  # it has nothing to do with the training
        {"state": "R"},  # whoever waits for a GPU spins as well
    ],
)
def test_nobody_else_is_accused_without_a_plain_sign(looks: dict[str, Any]) -> None:
    assert whom_it_waits_for(rank(0), WAITED, others(rank(1, **looks))) is None


def test_a_late_rank_that_is_stopped_itself_waits_for_nobody() -> None:
    assert whom_it_waits_for(rank(0, state="T"), WAITED, others(rank(1, state="T", step=3))) is None


def test_without_steps_nobody_is_behind() -> None:
    assert whom_it_waits_for(rank(0, step=None), WAITED, others(rank(1, step=None), rank(2, step=1))) is None
