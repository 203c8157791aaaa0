"""The rules one by one."""

from __future__ import annotations

import pytest

from holdfast.fault_tolerance.stop import END, LOADER_END, in_loader, position, rules
from holdfast.fault_tolerance.stop.rules import (
    ENDED,
    GO,
    LATE,
    NEVER,
    STOP,
    TAKES_PART,
    WAIT,
    Proposal,
    RankView,
)


@pytest.mark.parametrize(
    ("past", "here", "committed", "expected"),
    [
        (4, 6, False, (True, GO)),
        (4, 7, False, (True, WAIT)),
        (4, 9, True, (True, STOP)),
        (6, 7, True, (True, STOP)),
        (7, 8, False, (False, GO)),
    ],
)
def test_a_rank_at_a_boundary(past: int, here: int, committed: bool, expected: tuple[bool, str]) -> None:
    assert rules.at_boundary(past, here, 7, committed=committed) == expected


def test_a_rank_past_the_place_has_answered_without_a_word() -> None:
    proposal = Proposal(2, 7)
    before, past = RankView(0, TAKES_PART, 6, answered=1, yes=True), RankView(1, TAKES_PART, 7)
    assert rules.answer(before, proposal) is None and rules.answer(past, proposal) is False
    assert rules.unanswered([before, past], proposal) == [before]
    assert rules.joint_answer([before, past], proposal) is None
    assert rules.joint_answer([past], proposal) is False


@pytest.mark.parametrize(
    ("reached", "by", "place"),
    [
        (position(5), 1, position(5, 1)),  # the next boundary, be it in a validation or after the next batch
        (position(5), 10, position(14, 1)),
        (position(5, 3), 2, position(5, 5)),
        (position(5, 3), 10**6, position(5, in_loader(0, LOADER_END))),
        (position(5, in_loader(1, LOADER_END)), 3, position(5, in_loader(2, 3))),
        (position(5, END - 1), 2, position(5, END)),
        (position(5, END), 1, position(6)),
    ],
)
def test_the_place_ahead(reached: int, by: int, place: int) -> None:
    assert rules.ahead(reached, by) == place > reached


def test_the_margin_covers_the_way_of_a_proposal() -> None:
    assert rules.margin(0.0, 5.0) == 1
    assert rules.margin(1000.0, 0.6) == 901


def test_who_has_not_begun_gets_a_moment() -> None:
    views = [RankView(0, TAKES_PART), RankView(3, NEVER)]
    assert rules.absent(views, LATE - 0.1) is None
    assert rules.absent(views, LATE) == [3]
    assert rules.absent(views[:1], 0.0) == []
    assert rules.absent([RankView(3, NEVER, gone=True)], 0.0) == [3]


def test_who_has_ended_a_training_gets_a_moment_to_begin_another() -> None:
    ended = RankView(3, ENDED)
    assert rules.absent([ended], LATE - 0.1) is None
    assert rules.absent([ended], LATE) == [] and rules.over([RankView(0, TAKES_PART), ended]) == (3,)
