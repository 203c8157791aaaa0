"""Every rule of when a rank is hung, and what is reported of a rank, each fact once; with times as arguments."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import (
    Board,
    BoardEvent,
    BoardWriter,
    Identity,
    Limits,
    OpenSection,
    Request,
    SectionTotal,
    Snapshot,
    layout,
    writer,
)
from holdfast.fault_tolerance.monitor.deadlines import (
    OVERSLEPT,
    WAKEUP_GRACE,
    Deadline,
    Milestones,
    Suspensions,
    deadlines,
    earliest,
    next_scan,
    was_suspended,
)
from holdfast.fault_tolerance.monitor.hang_handler import describe
from tests.boards import SECOND, START, at, connected, snapshot

NO_GAPS = Suspensions()


def found(board: Snapshot, gaps: Suspensions = NO_GAPS) -> dict[str, int]:
    """Reason (for a section its name) → moment, for every limit in force."""
    return {
        limit.section if limit.reason == "section" else limit.reason: limit.at_ns
        for limit in deadlines(board, gaps)
    }


def opened(*names: str, seconds: float = 1.0) -> dict[str, object]:
    """Sections that were opened at this moment."""
    sections = tuple(OpenSection(name, at(seconds)) for name in names)
    return {"section_count": len(names), "open_sections": sections}


def beaten(seconds: float, **fields: object) -> dict[str, object]:
    """Heartbeats, the last one at this moment."""
    return {"heartbeat_count": 3, "last_heartbeat_ns": at(seconds), **fields}


BY_USER, DEFAULT = Limits(initial=60.0, initial_set_by_user=True), Limits(initial=60.0)
BOTH = Limits(initial=60.0, subsequent=5.0, initial_set_by_user=True)
ONE_SECOND = Limits(initial=1.0, subsequent=1.0, initial_set_by_user=True)
NESTED = Limits(sections={"epoch": 60.0, "step": 5.0})
OUTSIDE = Limits(out_of_section=7.0)
EVERYTHING = Limits(
    initial=1.0, subsequent=1.0, sections={"step": 1.0}, out_of_section=1.0, initial_set_by_user=True
)
BUSY = {**beaten(2), **opened("setup", "step", seconds=3)}
COUNTED = replace(DEFAULT, subsequent=5.0)
DEADLINES: dict[str, tuple[Snapshot, dict[str, int]]] = {
    "set by the user, from the start": (snapshot(limits=BY_USER), {"initial_heartbeat": at(60)}),
    "set by the user, also after connecting": (connected(20, limits=BY_USER), {"initial_heartbeat": at(60)}),
    "not set by the user, before connecting": (snapshot(limits=DEFAULT), {}),
    "not set by the user, from connecting": (
        connected(5000, limits=DEFAULT),
        {"initial_heartbeat": at(5060)},
    ),
    **{
        f"{what} ends the initial limit {limits.initial_set_by_user}": (
            connected(**fields, limits=limits),
            {},
        )
        for limits in (BY_USER, DEFAULT)
        for what, fields in {
            "a heartbeat": beaten(2),
            "an open section": opened("step", seconds=2),
            "a closed section": {"section_count": 1, "out_of_section_since_ns": at(3)},
        }.items()
    },
    "no initial limit": (connected(limits=Limits(initial=None, initial_set_by_user=True)), {}),
    # a second `fit` of one process has a setup of its own, which is no time between two heartbeats
    "connected again": (connected(100, **beaten(100), limits=BOTH), {"initial_heartbeat": at(160)}),
    "connected again without a heartbeat": (connected(1000, limits=BY_USER), {"initial_heartbeat": at(1060)}),
    "connected again, and a section": (
        connected(100, **beaten(100), **opened("step", seconds=101), limits=BOTH),
        {},
    ),
    "a heartbeat": (connected(**beaten(30), limits=Limits(subsequent=5.0)), {"heartbeat": at(35)}),
    "sections only": (connected(section_count=9, out_of_section_since_ns=at(30), limits=ONE_SECOND), {}),
    "a heartbeat beside a section": (
        connected(
            **beaten(30), **opened("step", seconds=31), limits=Limits(subsequent=5.0, sections={"step": 10.0})
        ),
        {"heartbeat": at(35), "step": at(41)},
    ),
    # the program has not connected: what it does between two steps is not known
    "counted steps": (snapshot(**beaten(3), limits=COUNTED), {}),
    "counted steps, set by the user": (
        snapshot(**beaten(3), limits=replace(COUNTED, subsequent_set_by_user=True)),
        {"heartbeat": at(8)},
    ),
    "counted steps, no limit": (
        snapshot(**beaten(3), limits=replace(COUNTED, subsequent=None, subsequent_set_by_user=True)),
        {},
    ),
    "a counted step ends the initial limit": (snapshot(**beaten(3), limits=BOTH), {}),
    "two open sections": (
        connected(**opened("epoch", "step"), limits=NESTED),
        {"epoch": at(61), "step": at(6)},
    ),
    "sections without a limit": (
        connected(**opened("mine", "known"), limits=Limits(sections={"known": None})),
        {},
    ),
    "out of section": (
        connected(section_count=1, out_of_section_since_ns=at(30), limits=OUTSIDE),
        {"out_of_section": at(37)},
    ),
    "before the first section": (connected(limits=OUTSIDE), {}),
    "in a section": (connected(**opened("mine"), limits=OUTSIDE), {}),
    # they are open and on no board: nothing is open for a reader, and nothing was closed last
    "more sections than a board holds": (
        connected(section_count=70, limits=Limits(initial=1.0, out_of_section=1.0)),
        {},
    ),
    "finished": (connected(**BUSY, limits=EVERYTHING, finished=True), {}),
    "of no rank": (snapshot(identity=None, limits=EVERYTHING), {}),
    "no limit of any kind": (connected(**BUSY, limits=Limits(sections={"step": None})), {}),
}


@pytest.mark.parametrize("name", DEADLINES)
def test_board_has_its_deadlines(name: str) -> None:
    board, expected = DEADLINES[name]
    assert found(board) == expected


class TestWarmUp:
    LIMITS = Limits(initial=60.0, sections={"step": 5.0, "setup": 9.0}, out_of_section=4.0)

    def limits(self, steps: int, warm_up: int, limits: Limits = LIMITS) -> dict[str, float]:
        """Reason (for a section its name) → limit, in a step and out of section, after this many steps."""
        totals = {"step": SectionTotal(steps, 1)} if steps else {}
        opened = tuple(OpenSection(name, at(10)) for name in ("setup", "step"))
        inside = connected(section_count=9, open_sections=opened, limits=limits, section_totals=totals)
        outside = replace(inside, open_sections=(), out_of_section_since_ns=at(10))
        found = [each for board in (inside, outside) for each in deadlines(board, NO_GAPS, warm_up)]
        return {each.section or each.reason: each.limit for each in found}

    @pytest.mark.parametrize("steps", [0, 1, 4])
    def test_first_steps_have_the_initial_limit(self, steps: int) -> None:
        """Another section keeps its own."""
        assert self.limits(steps, 5) == {"setup": 9.0, "step": 60.0, "out_of_section": 60.0}

    @pytest.mark.parametrize(("steps", "warm_up"), [(5, 5), (6, 5), (0, 0)])
    def test_later_steps_have_their_own(self, steps: int, warm_up: int) -> None:
        assert self.limits(steps, warm_up) == {"setup": 9.0, "step": 5.0, "out_of_section": 4.0}

    def test_initial_limit_that_is_shorter_shortens_none(self) -> None:
        assert self.limits(0, 5, replace(self.LIMITS, initial=4.5))["step"] == 5.0

    def test_without_an_initial_limit_there_is_none(self) -> None:
        assert self.limits(0, 5, replace(self.LIMITS, initial=None)) == {"setup": 9.0}

    def test_section_without_a_limit_gets_none(self) -> None:
        limits = replace(self.LIMITS, sections={"setup": 9.0}, out_of_section=None)
        assert self.limits(0, 5, limits) == {"setup": 9.0}


@pytest.mark.parametrize("limit", [1e10, 1e300])
def test_a_limit_beyond_all_time_is_far_away_and_no_error(limit: float) -> None:
    board = connected(heartbeat_count=1, last_heartbeat_ns=at(2), limits=Limits(subsequent=limit))
    assert found(board)["heartbeat"] > at(20 * 365 * 86400)
    assert next_scan(board, NO_GAPS, at(3)) > at(86400)


@pytest.mark.parametrize(
    ("deadline", "text"),
    [
        (Deadline(0, at(0), 5.0, "initial_heartbeat"), "Did not get initial heartbeat. Waited 5.25 seconds."),
        (Deadline(0, at(0), 5.0, "heartbeat"), "Did not get subsequent heartbeat. Waited 5.25 seconds."),
        (Deadline(0, at(0), 5.0, "section", "step"), "Section 'step' did not end. Waited 5.25 seconds."),
        (Deadline(0, at(0), 5.0, "out_of_section"), "No section was opened. Waited 5.25 seconds."),
    ],
)
def test_what_is_said_has_the_documented_words(deadline: Deadline, text: str) -> None:
    assert deadline.text(at(5.25)) == text


class TestEndedMainThread:
    """Only what began after the end, and a checkpoint that is being saved, still has a limit."""

    LIMITS = Limits(
        initial=60.0, subsequent=5.0, sections={"step": 7.0, "checkpointing": 9.0}, out_of_section=3.0
    )

    @pytest.mark.parametrize("raised", [False, True])
    @pytest.mark.parametrize(
        ("fields", "deadlines_at"),
        [
            ({"heartbeat_count": 2, "last_heartbeat_ns": at(2)}, {}),
            ({"heartbeat_count": 2, "last_heartbeat_ns": at(11)}, {"heartbeat": at(16)}),
            ({"section_count": 1, "open_sections": (OpenSection("step", at(2)),)}, {}),
            ({"section_count": 1, "open_sections": (OpenSection("step", at(11)),)}, {"step": at(18)}),
            (
                {"section_count": 1, "open_sections": (OpenSection("checkpointing", at(2)),)},
                {"checkpointing": at(11)},
            ),
            ({"section_count": 1, "out_of_section_since_ns": at(12)}, {}),
            ({}, {}),
        ],
    )
    def test_interval_counts_if_it_began_later(
        self, raised: bool, fields: dict[str, object], deadlines_at: dict[str, int]
    ) -> None:
        board = connected(limits=self.LIMITS, main_ended_ns=at(10), main_raised=raised, **fields)
        assert found(board) == deadlines_at

    @pytest.mark.parametrize(("raised", "deadlines_at"), [(True, {"checkpointing": at(33)}), (False, {})])
    def test_checkpoint_without_limit_has_one_after_an_exception(
        self, raised: bool, deadlines_at: dict[str, int]
    ) -> None:
        saving = {"section_count": 1, "open_sections": (OpenSection("checkpointing", at(2)),)}
        board = connected(limits=Limits(subsequent=5.0), main_ended_ns=at(3), main_raised=raised, **saving)
        assert found(board) == deadlines_at


# -- what is reported of a rank, each fact once --------------------------------------------------------------


def news(seen: Milestones, board: Snapshot, *events: BoardEvent) -> list[dict[str, Any]]:
    return list(seen.poll(board, lambda: list(events)))


def event(kind: str, seconds: float, value: int = 0) -> BoardEvent:
    return BoardEvent(kind, at(seconds), "", value)


def moment(seconds: float) -> float:
    return (START + seconds * 1e9) / 1e9


def test_each_milestone_is_told_once_with_the_moment_that_the_ring_has() -> None:
    seen = Milestones()
    ring = [
        event("connect", 1),
        event("start", 2),
        event("end", 3),
        event("heartbeat", 4),
        event("step", 5, 4181),
    ]
    board = connected(1, heartbeat_count=2, last_heartbeat_ns=at(5), section_count=1, step=4181)
    assert news(seen, board, *ring) == [
        {"event": "rank_connect", "at": moment(1)},
        {"event": "first_step", "at": moment(5), "step": 4181},
        {"event": "first_heartbeat", "at": moment(4)},
        {"event": "first_section", "at": moment(2)},
    ]
    assert news(seen, board, *ring) == []


STEPS = [event("step", second, 4180 + second) for second in range(1, 10)]
FIRSTS: dict[str, tuple[Snapshot, list[BoardEvent], dict[str, Any]]] = {
    "the ring's first step, not the board's latest": (
        connected(1, heartbeat_count=9, last_heartbeat_ns=at(9), step=4189),
        STEPS,
        {"event": "first_step", "at": moment(1), "step": 4181},
    ),
    "a heartbeat that gives its step": (
        connected(1, heartbeat_count=9, last_heartbeat_ns=at(9), step=9),
        [event("step", 3, 3), event("step", 9, 9)],
        {"event": "first_heartbeat", "at": moment(3)},
    ),
    "the last activity, where the ring has moved on": (
        connected(1, heartbeat_count=9000, last_heartbeat_ns=at(8), step=7, last_activity_ns=at(9)),
        [event("mark", 9)],
        {"event": "first_step", "at": moment(9), "step": 7},
    ),
    "a counted step": (
        snapshot(heartbeat_count=2, last_heartbeat_ns=at(9), step=2),
        [event("step", 3, 1), event("step", 9, 2)],
        {"event": "first_step", "at": moment(3), "step": 1, "counted": True},
    ),
}


@pytest.mark.parametrize("name", FIRSTS)
def test_first_of_a_kind_is(name: str) -> None:
    board, events, expected = FIRSTS[name]
    told = news(Milestones(), board, *events)
    assert expected in told
    assert board.connected == ("rank_connect" in [each["event"] for each in told])


def test_a_request_is_told_once_and_a_new_one_again() -> None:
    seen = Milestones()
    asked = snapshot(request=Request("exclude_this_node", "bad HBM"))
    assert news(seen, asked) == [
        {"event": "request", "action": "exclude_this_node", "description": "bad HBM"}
    ]
    assert news(seen, asked) == []
    again = snapshot(request=Request("shutdown_workload", "bad HBM"))
    assert [told["action"] for told in news(seen, again)] == ["shutdown_workload"]


def heartbeat_limit(last: float, limit: float = 10.0) -> Deadline:
    board = connected(heartbeat_count=1, last_heartbeat_ns=at(last), limits=Limits(subsequent=limit))
    found = earliest(deadlines(board, Suspensions()))
    assert found is not None
    return found


def test_a_rank_is_called_late_at_four_fifths_of_its_limit_once_for_each_interval() -> None:
    seen, deadline = Milestones(), heartbeat_limit(last=20)
    assert list(seen.suspicion(deadline, at(27.99))) == []
    assert list(seen.suspicion(deadline, at(28.01))) == [
        {"event": "suspicion", "reason": "heartbeat", "section": "", "waited": 8.01, "limit": 10.0}
    ]
    assert list(seen.suspicion(deadline, at(29))) == []
    assert list(seen.suspicion(heartbeat_limit(last=29), at(38))) != []


# -- whatever a rank does while the monitor sleeps, no deadline is overslept; a frozen world looks like no hang

# The rank is a real writer on a real board, with the clock in the test's hand.
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

    def do(self, delay: int, action: str) -> None:
        self.clock.now += delay
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
Story = tuple[Limits, list[tuple[int, str]], list[tuple[int, str]]]
stories = st.one_of(
    st.tuples(limits(by_user=True), script, script),
    st.tuples(limits(by_user=False), script_with_ends, script_with_ends),
)


@given(stories)
def test_no_deadline_is_overslept(story: Story) -> None:
    in_force, before, meanwhile = story
    with rank(in_force) as one:
        for each in before:
            one.do(*each)
        now = one.clock.now
        wake = next_scan(one.board.snapshot(), Suspensions(), now)
        for delay, action in meanwhile:
            if one.clock.now + delay >= wake:
                break
            one.do(delay, action)
            passed_first = earliest(deadlines(one.board.snapshot(), Suspensions()))
            assert passed_first is None or passed_first.at_ns >= wake


@given(stories, st.integers(0, 10), st.lists(st.tuples(MINUTES, st.integers(1, 300 * SECOND)), max_size=3))
def test_a_suspension_leaves_each_rank_the_time_it_had_left(
    story: Story, since_look: int, stops: list[tuple[int, int]]
) -> None:
    in_force, before, _ = story
    gaps = Suspensions()
    with rank(in_force) as one:
        for each in before:
            one.do(*each)
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
def test_a_suspension_before_an_interval_gives_it_nothing(story: Story, started: int, length: int) -> None:
    in_force, before, _ = story
    with rank(in_force) as one:
        for each in before:
            one.do(*each)
        board = one.board.snapshot()
        early = Suspensions().plus(START - started - length - 1, START - started - 1)
        assert list(deadlines(board, early)) == list(deadlines(board, Suspensions()))


@given(data=st.data())
def test_whatever_stands_on_a_board_the_monitor_can_go_on(data: st.DataObject) -> None:
    """A rank that scribbles over its own page may be killed for it; the monitor may not fail over it."""
    with rank(Limits(sections={"step": 1.0})) as one:
        for action in ("connect", "heartbeat", "start_section step"):
            one.do(0, action)
        word = data.draw(st.integers(0, layout.STATE_WORDS - 1))
        scribble = data.draw(st.binary(min_size=8, max_size=320)) * data.draw(st.sampled_from([1, 1000]))
        with open(one.board.path, "r+b") as file:
            file.seek(layout.IDENTITY_BYTES + layout.WORD * word)
            file.write(scribble[: layout.WORD * (layout.STATE_WORDS - word)])
        read = one.board.snapshot()
        limits = read.limits
        for seconds in (limits.initial, limits.subsequent, limits.out_of_section, *limits.sections.values()):
            assert seconds is None or (seconds > 0 and math.isfinite(seconds))
        first = earliest(deadlines(read, NO_GAPS))
        assert isinstance(next_scan(read, NO_GAPS, at(1)), int)
        told = [*Milestones().poll(read, one.board.events), *Milestones().suspicion(first, 10**12)]
        json.dumps([told, describe(read, at(1))])


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
