"""Every rule of when a rank is hung, with times as arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.fault_tolerance.board import Limits, OpenSection, SectionTotal, Snapshot
from holdfast.fault_tolerance.monitor.deadlines import (
    SECOND,
    Deadline,
    Suspensions,
    deadlines,
    earliest,
    next_scan,
)

from .values import at, connected, snapshot

NO_GAPS = Suspensions()


def found(board: Snapshot, gaps: Suspensions = NO_GAPS) -> dict[str, int]:
    """Reason (for a section its name) → moment, for every limit in force."""
    return {
        limit.section if limit.reason == "section" else limit.reason: limit.at_ns
        for limit in deadlines(board, gaps)
    }


class TestInitial:
    def test_set_by_the_user_it_runs_from_the_ranks_start_before_it_connects(self) -> None:
        board = snapshot(limits=Limits(initial=60.0, initial_set_by_user=True))
        assert found(board) == {"initial_heartbeat": at(60)}

    def test_set_by_the_user_it_goes_on_from_the_start_after_connecting(self) -> None:
        board = connected(20, limits=Limits(initial=60.0, initial_set_by_user=True))
        assert found(board) == {"initial_heartbeat": at(60)}

    def test_not_set_by_the_user_it_does_not_bind_before_connecting(self) -> None:
        assert found(snapshot(limits=Limits(initial=60.0))) == {}

    def test_not_set_by_the_user_nobody_is_killed_for_connecting_late(self) -> None:
        board = connected(5000, limits=Limits(initial=3600.0))
        assert found(board) == {"initial_heartbeat": at(5000 + 3600)}

    @pytest.mark.parametrize("by_user", [True, False])
    def test_the_first_heartbeat_ends_it(self, by_user: bool) -> None:
        limits = Limits(initial=60.0, initial_set_by_user=by_user)
        assert found(connected(heartbeat_count=1, last_heartbeat_ns=at(2), limits=limits)) == {}

    @pytest.mark.parametrize("by_user", [True, False])
    def test_the_first_section_ends_it(self, by_user: bool) -> None:
        limits = Limits(initial=60.0, initial_set_by_user=by_user)
        opened = connected(section_count=1, open_sections=(OpenSection("step", at(2)),), limits=limits)
        closed = connected(section_count=1, out_of_section_since_ns=at(3), limits=limits)
        assert found(opened) == {}
        assert found(closed) == {}

    @pytest.mark.parametrize("by_user", [True, False])
    def test_none_is_no_limit(self, by_user: bool) -> None:
        assert found(connected(limits=Limits(initial=None, initial_set_by_user=by_user))) == {}

    def test_connecting_again_begins_to_count_anew(self) -> None:
        """A second `fit` of one process has a setup of its own, which is no time between two heartbeats."""
        limits = Limits(initial=60.0, subsequent=5.0, initial_set_by_user=True)
        again = connected(100, heartbeat_count=7, last_heartbeat_ns=at(100), limits=limits)
        assert found(again) == {"initial_heartbeat": at(160)}

    def test_connecting_again_without_ever_a_heartbeat_counts_from_then(self) -> None:
        limits = Limits(initial=60.0, initial_set_by_user=True)
        assert found(connected(1000, limits=limits)) == {"initial_heartbeat": at(1060)}

    def test_connecting_again_the_first_section_ends_it_too(self) -> None:
        limits = Limits(initial=60.0, subsequent=5.0)
        again = connected(
            100,
            heartbeat_count=7,
            last_heartbeat_ns=at(100),
            section_count=1,
            open_sections=(OpenSection("step", at(101)),),
            limits=limits,
        )
        assert found(again) == {}


class TestHeartbeats:
    def test_the_limit_runs_from_the_last_one(self) -> None:
        board = connected(heartbeat_count=3, last_heartbeat_ns=at(30), limits=Limits(subsequent=5.0))
        assert found(board) == {"heartbeat": at(35)}

    def test_a_program_of_sections_only_is_never_killed_for_sending_none(self) -> None:
        limits = Limits(initial=1.0, subsequent=1.0, initial_set_by_user=True)
        board = connected(section_count=9, out_of_section_since_ns=at(30), limits=limits)
        assert found(board) == {}

    def test_they_count_beside_sections(self) -> None:
        board = connected(
            heartbeat_count=3,
            last_heartbeat_ns=at(30),
            section_count=1,
            open_sections=(OpenSection("step", at(31)),),
            limits=Limits(subsequent=5.0, sections={"step": 10.0}),
        )
        assert found(board) == {"heartbeat": at(35), "step": at(41)}

    def test_counted_steps_have_a_limit_only_if_the_user_set_one(self) -> None:
        """The program has not connected: what it does between two steps is not known."""
        default, by_user = Limits(3600.0, 5.0), Limits(3600.0, 5.0, subsequent_set_by_user=True)
        counted = snapshot(heartbeat_count=1, last_heartbeat_ns=at(3), limits=default)
        assert counted.counted and found(counted) == {}
        assert found(replace(counted, limits=by_user)) == {"heartbeat": at(8)}
        assert found(replace(counted, limits=replace(by_user, subsequent=None))) == {}

    def test_a_counted_step_ends_the_wait_for_a_first_sign_of_life(self) -> None:
        limits = Limits(initial=10.0, subsequent=2700.0, initial_set_by_user=True)
        assert found(snapshot(limits=limits)) == {"initial_heartbeat": at(10)}
        assert found(snapshot(limits=limits, heartbeat_count=1, last_heartbeat_ns=at(3))) == {}


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


class TestSections:
    def test_every_open_section_counts(self) -> None:
        board = connected(
            section_count=2,
            open_sections=(OpenSection("epoch", at(10)), OpenSection("step", at(20))),
            limits=Limits(sections={"epoch": 60.0, "step": 5.0}),
        )
        assert found(board) == {"epoch": at(70), "step": at(25)}

    def test_an_outer_one_is_past_its_limit_while_inner_ones_open_and_close(self) -> None:
        limits = Limits(sections={"epoch": 60.0, "step": 5.0})
        outer = OpenSection("epoch", at(10))
        for second in range(11, 80):
            inner = (OpenSection("step", at(second)),) if second % 2 else ()
            board = connected(section_count=second, open_sections=(outer, *inner), limits=limits)
            first = earliest(deadlines(board, NO_GAPS))
            assert first is not None
            assert (first.section == "epoch") == (second >= 65 or not inner)
            assert (first.at_ns <= at(second)) == (second >= 70)

    def test_one_without_a_limit_has_none(self) -> None:
        limits = Limits(sections={"step": 5.0, "known": None})
        opened = (OpenSection("mine", at(1)), OpenSection("known", at(1)))
        assert found(connected(section_count=2, open_sections=opened, limits=limits)) == {}

    def test_out_of_section_runs_from_the_last_end(self) -> None:
        limits = Limits(out_of_section=7.0)
        assert found(connected(section_count=1, out_of_section_since_ns=at(30), limits=limits)) == {
            "out_of_section": at(37)
        }

    def test_out_of_section_does_not_run_before_the_first_section(self) -> None:
        assert found(connected(limits=Limits(out_of_section=7.0))) == {}

    def test_out_of_section_does_not_run_while_one_is_open(self) -> None:
        limits = Limits(out_of_section=7.0)
        opened = (OpenSection("mine", at(1)),)
        assert found(connected(section_count=1, open_sections=opened, limits=limits)) == {}

    def test_sections_beyond_what_a_board_holds_do_not_bring_the_initial_limit_back(self) -> None:
        """They are open and on no board: nothing is open for a reader, and nothing was closed last."""
        board = connected(section_count=70, limits=Limits(initial=1.0, out_of_section=1.0))
        assert found(board) == {}


EVERYTHING = Limits(
    initial=1.0, subsequent=1.0, sections={"step": 1.0}, out_of_section=1.0, initial_set_by_user=True
)
BUSY = {
    "heartbeat_count": 1,
    "last_heartbeat_ns": at(2),
    "section_count": 2,
    "open_sections": (OpenSection("step", at(3)),),
}


def test_a_finished_rank_may_take_as_long_as_it_likes() -> None:
    assert found(connected(**BUSY, limits=EVERYTHING))
    assert found(connected(**BUSY, limits=EVERYTHING, finished=True)) == {}


def test_a_board_that_belongs_to_nobody_yet_has_no_limits() -> None:
    assert found(snapshot(identity=None, limits=EVERYTHING)) == {}


def test_none_is_no_limit_for_every_kind() -> None:
    assert found(connected(**BUSY, limits=Limits(sections={"step": None}))) == {}


@pytest.mark.parametrize("limit", [1e10, 1e300])
def test_a_limit_beyond_all_time_is_far_away_and_no_error(limit: float) -> None:
    board = connected(heartbeat_count=1, last_heartbeat_ns=at(2), limits=Limits(subsequent=limit))
    assert found(board)["heartbeat"] > at(20 * 365 * 86400)
    assert next_scan(board, NO_GAPS, at(3)) > at(86400)


def test_a_gap_moves_every_limit() -> None:
    still = connected(**BUSY, limits=EVERYTHING)
    gaps = NO_GAPS.plus(at(3.5), at(103.5))
    assert found(still, gaps) == {
        reason: moment + 100 * SECOND + max(0, at(104.5) - moment - 100 * SECOND)
        for reason, moment in found(still).items()
    }


def test_the_earliest_is_the_first_to_be_passed() -> None:
    assert earliest([]) is None
    late, soon = Deadline(9, 0, 1.0, "heartbeat"), Deadline(4, 0, 1.0, "section", "step")
    assert earliest([late, soon]) is soon


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


def test_the_shortest_limit_is_over_all_that_could_begin() -> None:
    limits = Limits(initial=9.0, subsequent=8.0, sections={"a": 3.0, "b": None}, out_of_section=4.0)
    assert next_scan(snapshot(limits=limits), Suspensions(), at(7)) == at(10)


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
