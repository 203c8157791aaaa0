"""Healthy jobs, diagnosed at any moment: no rank is accused with more than a guess.

Simulated, as values only: ranks between steps, in collectives, in validation, at a checkpoint, in a pause of the
garbage collector, with boards that move or are silent no longer than is usual for them.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.incidents.evidence import (
    DIAGNOSE,
    EARLY,
    HANG,
    BoardFacts,
    Case,
    OpenSection,
    RankEvidence,
    RingEvent,
)
from holdfast.incidents.verdict import LOW
from tests.incidents.cases import case, judge, process, rank

PLACES = [
    "all_reduce",
    "barrier",
    "backward",
    "busy",
    "dataset",
    "loader",
    "torch_save",
    "dcp_save",
    "lock",
    "sleep",
]
SECTIONS = ["", "step", "data_loading", "validation", "checkpointing"]
STATES = ["S", "S", "S", "R", "D"]


def healthy(number: int, rng: random.Random, *, moved: bool | None = None) -> RankEvidence:
    """A rank at any moment of its healthy life."""
    where = rng.choice(PLACES)
    interval = rng.choice([0.01, 0.2, 2.0, 40.0])
    silent = rng.uniform(0.0, interval)
    events = tuple(
        RingEvent("step", silent + interval * rng.uniform(0.9, 1.1) * back) for back in range(3, -1, -1)
    )
    section = rng.choice(SECTIONS)
    board = BoardFacts(
        connected=True,
        heartbeats=rng.randrange(100),
        step=rng.choice([None, 100, 101]),
        sections=(OpenSection(section, silent),) if section else (),
        silent=silent,
        age=400.0,
        moved=rng.random() < 0.5 if moved is None else moved,
        events=events,
        rhythm=1.1 * interval,
    )
    kernel = process(
        where, cpu=rng.choice([0.0, 0.01, 0.05]), switches=rng.randrange(20), state=rng.choice(STATES)
    )
    return rank(number, rng.choice([where, where, ""]), board=board, process=kernel)


@pytest.mark.parametrize("trigger", [DIAGNOSE, EARLY, HANG])
def test_ranks_whose_boards_move_are_never_accused(trigger: str) -> None:
    for seed in range(1000):
        rng = random.Random(seed)
        found = case(
            *(healthy(n, rng, moved=True) for n in range(rng.randint(1, 8))), trigger=trigger, accused=0
        )
        verdict = judge(found)
        assert verdict.rank is None and verdict.kind == "slow", (seed, verdict)


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_a_healthy_job_that_somebody_asks_about_is_slow_at_most(seed: int, world: int) -> None:
    rng = random.Random(seed)
    verdict = judge(case(*(healthy(n, rng) for n in range(world)), trigger=DIAGNOSE, accused=None))

    assert verdict.rank is None and verdict.kind == "slow"


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_a_healthy_job_without_boards_is_guessed_at_only(seed: int, world: int) -> None:
    rng = random.Random(seed)
    ranks = [healthy(n, rng) for n in range(world)]
    verdict = judge(case(*(replace(each, board=None) for each in ranks), trigger=DIAGNOSE, accused=None))

    assert verdict.confidence == LOW or verdict.rank is None


def test_an_empty_case_accuses_nobody() -> None:
    assert judge(Case()).rank is None
