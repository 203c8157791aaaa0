"""Restart or not? Values in, a decision out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.agent.policy import (
    HOUR,
    MembershipBudget,
    Progress,
    is_trouble,
    may_restart,
)
from holdfast.fault_tolerance.launcher.nodes.records import FIRST, Record


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_as_many_restarts_as_allowed_and_no_more(used: int, allowed: int) -> None:
    assert may_restart(used, allowed) == (used + 1 <= allowed)


waits = st.lists(st.floats(0.0, 2 * HOUR), max_size=200)


def _flap(budget: MembershipBudget, waits: list[float]) -> list[float]:
    """A node comes again and again, after each of these waits; returns when it restarted the job."""
    now, restarts = 1e5, []
    for wait in waits:
        now += wait
        if budget.allows(now):
            budget.take(now)
            restarts.append(now)
    return restarts


@given(waits, st.floats(0.1, 600.0), st.integers(1, 20))
def test_a_flapping_node_cannot_restart_a_healthy_job_for_ever(
    waits: list[float], interval: float, limit: int
) -> None:
    restarts = _flap(MembershipBudget(interval, limit), waits)
    assert all(later - earlier >= interval for earlier, later in itertools.pairwise(restarts))
    for number, began in enumerate(restarts):
        within = [later for later in restarts[number:] if later - began <= HOUR]
        assert len(within) <= limit


@given(st.floats(0.0, 1e9))
def test_the_first_node_to_come_need_not_wait(now: float) -> None:
    assert MembershipBudget().allows(now)


@given(st.integers(1, 10), st.integers(1, 60))
def test_a_spent_budget_is_whole_again_after_an_hour(limit: int, interval: int) -> None:
    budget = MembershipBudget(interval, limit)
    spent = _flap(budget, [interval] * limit)
    assert len(spent) == limit
    assert not budget.allows(spent[-1] + interval)
    assert budget.allows(spent[-1] + HOUR + 1.0)


def test_asking_alone_spends_nothing() -> None:
    budget = MembershipBudget(interval=30.0, budget=1)
    assert all(budget.allows(float(second)) for second in range(100))


cycles = st.builds(Progress, step=st.integers(-1, 10**6), checkpoints=st.integers(0, 100))


@given(cycles, cycles)
def test_progress_is_a_checkpoint_or_a_higher_step(now: Progress, before: Progress) -> None:
    assert now.beyond(before) == (now.checkpoints > 0 or now.step > before.step)


def test_a_cycle_that_showed_nothing_made_no_progress() -> None:
    assert not Progress().beyond(Progress())


@pytest.mark.parametrize(
    ("record", "trouble"),
    [
        (FIRST.next("restart", reason="rank 1 died", node="a", restarts=1), True),
        (FIRST.next("join", reason="a node came", node="a"), False),
        (FIRST.next("exclude", reason="a rank asked for it", node="a", lost=1), False),
        (FIRST.next("end", reason="all ranks succeeded", node="a"), False),
        (FIRST.next("end", reason="preempted", node="a", exit_code=75), False),
        (FIRST.next("end", reason="a rank asked for it", node="a", exit_code=93), False),
        (FIRST.next("end", reason="rank 1 died", node="a", exit_code=137), True),
    ],
)
def test_only_trouble_on_another_node_is_looked_into(record: Record, trouble: bool) -> None:
    assert is_trouble(record) is trouble
