"""Whatever a rank does while the monitor sleeps, no deadline is overslept; and a frozen world looks like no hang.

The rank is a real writer on a real board, with the clock in the test's hand.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import Board, BoardWriter, Identity, Limits, writer
from holdfast.fault_tolerance.monitor.deadlines import (
    OVERSLEPT,
    WAKEUP_GRACE,
    Suspensions,
    deadlines,
    earliest,
    next_scan,
    was_suspended,
)

from .values import SECOND, START

MINUTES = st.integers(0, 300 * SECOND)


@dataclass
class Clock:
    """Does not advance by itself."""

    now: int = START

    def __call__(self) -> int:
        return self.now


@dataclass
class Rank:
    """A rank and its board."""

    board: Board
    hand: BoardWriter
    clock: Clock
    began: int = field(default=START)

    def do(self, action: str) -> None:
        name, _, section = action.partition(" ")
        getattr(self.hand, name)(*([section] if section else []))


@contextmanager
def rank(limits: Limits) -> Iterator[Rank]:
    """A rank that has just started. The launcher has bound the board to it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(writer, "monotonic_ns", clock)
        board = Board.create(str(Path(folder, "0.board")), limits)
        board.bind_process(Identity(1, 1, 0, 0, 0, START))
        hand = BoardWriter(board.path)
        try:
            yield Rank(board, hand, clock)
        finally:
            hand.detach()
            board.close()


seconds = st.none() | st.floats(0.01, 600.0)
ACTIONS = ["connect", "heartbeat", "end_all_sections", "checkpoint", "mark note"] + [
    f"{edge} {name}"
    for edge in ("start_section", "end_section")
    for name in ("setup", "step", "checkpointing", "unlimited")
]
script = st.lists(st.tuples(MINUTES, st.sampled_from(ACTIONS)), max_size=12)
script_with_ends = st.lists(st.tuples(MINUTES, st.sampled_from([*ACTIONS, "finish"])), max_size=12)


@st.composite
def limits(draw: st.DrawFn, by_user: bool) -> Limits:
    sections = {name: draw(seconds) for name in ("setup", "step", "checkpointing")}
    return Limits(draw(seconds), draw(seconds), sections, draw(seconds), by_user)


# A rank that ends supervision and begins it again has no first sign of life to give, so the limit that the user set for
# that is left out there: what remains of it could be shorter than any limit.
stories = st.one_of(
    st.tuples(limits(by_user=True), script, script),
    st.tuples(limits(by_user=False), script_with_ends, script_with_ends),
)


@given(stories)
def test_no_deadline_is_overslept(
    story: tuple[Limits, list[tuple[int, str]], list[tuple[int, str]]],
) -> None:
    in_force, before, meanwhile = story
    with rank(in_force) as one:
        for delay, action in before:
            one.clock.now += delay
            one.do(action)
        now = one.clock.now
        wake = next_scan(one.board.snapshot(), Suspensions(), now)
        for delay, action in meanwhile:
            one.clock.now += delay
            if one.clock.now >= wake:
                break
            one.do(action)
            passed_first = earliest(deadlines(one.board.snapshot(), Suspensions()))
            assert passed_first is None or passed_first.at_ns >= wake


@given(stories, st.integers(0, 10), st.lists(st.tuples(MINUTES, MINUTES), max_size=3))
def test_a_suspension_leaves_each_rank_the_time_it_had_left(
    story: tuple[Limits, list[tuple[int, str]], list[tuple[int, str]]],
    since_look: int,
    stops: list[tuple[int, int]],
) -> None:
    in_force, before, _ = story
    gaps = Suspensions()
    with rank(in_force) as one:
        for delay, action in before:
            one.clock.now += delay
            one.do(action)
        board = one.board.snapshot()
        for running, standing in stops:
            looked = one.clock.now + min(running, since_look * SECOND)
            left = [deadline.at_ns - looked for deadline in deadlines(board, gaps)]
            assume(all(rest > 0 for rest in left))
            one.clock.now = looked + standing
            gaps = gaps.plus(looked, one.clock.now)
            for deadline, rest in zip(deadlines(board, gaps), left, strict=True):
                assert deadline.at_ns - one.clock.now == max(rest, WAKEUP_GRACE)


@given(stories, MINUTES, MINUTES)
def test_a_suspension_before_an_interval_gives_it_nothing(
    story: tuple[Limits, list[tuple[int, str]], list[tuple[int, str]]], started: int, length: int
) -> None:
    in_force, before, _ = story
    with rank(in_force) as one:
        for delay, action in before:
            one.clock.now += delay
            one.do(action)
        board = one.board.snapshot()
        early = Suspensions().plus(START - started - length - 1, START - started - 1)
        assert list(deadlines(board, early)) == list(deadlines(board, Suspensions()))


def test_an_interval_that_began_in_the_gap_gets_only_what_lies_in_it() -> None:
    """A rank that is thawed before the monitor works already: its new intervals get none of the earlier gap."""
    gaps = Suspensions().plus(10 * SECOND, 110 * SECOND)
    assert gaps.since(109 * SECOND) == 1 * SECOND
    assert gaps.deadline(109 * SECOND, 30 * SECOND) == 140 * SECOND


def test_a_world_stood_still_when_a_look_comes_much_later_than_planned() -> None:
    assert not was_suspended(0, 10**15), "there was no look before"
    assert not was_suspended(50 * SECOND, 50 * SECOND + OVERSLEPT)
    assert was_suspended(50 * SECOND, 50 * SECOND + OVERSLEPT + 1)


def test_only_the_last_gaps_are_remembered() -> None:
    pairs = [(start, start + 7) for start in range(130)]
    gaps = Suspensions()
    for start, end in pairs:
        gaps = gaps.plus(start, end)
    assert gaps.spans == tuple(pairs[-100:])
