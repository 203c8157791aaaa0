"""The rules one by one, and the decisions of a node whose store is gone."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control.agreed_stop import VANISHED, AgreedStop
from holdfast.fault_tolerance.launcher.control.node import Node
from holdfast.fault_tolerance.launcher.control.records import Member, Membership, Settings
from holdfast.fault_tolerance.stop import END, LOADER_END, in_loader, position, rules
from holdfast.fault_tolerance.stop.rules import (
    ASK,
    COMMIT,
    ENDED,
    GO,
    LATE,
    MOST_BATCHES,
    MOST_LOADERS,
    NEVER,
    STOP,
    TAKES_PART,
    WAIT,
    WITHDRAW,
    RankView,
    Word,
    batches_of,
    describe,
    loader_of,
    validation_of,
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
    proposal = Word(ASK, 2, 7)
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


# -- the store is gone ----------------------------------------------------------------------------------------

REFUSED = "no process listens at a:1 any more"


class Stopped:
    """A node of two whose ranks take part; its store answers until `answered`. Times are seconds since the signal."""

    def __init__(self, word: Word | None = None, *, is_host: bool = False) -> None:
        members = Membership((Member("a"), Member("b")))
        self.node = Node(
            Settings(Member("a" if is_host else "b"), most=2, is_host=is_host), membership=members
        )
        if word is not None:
            self.node.view[self.node.key("word")] = word.encode()
        self.stop = AgreedStop(signal.SIGTERM, 0.0)

    def tick(self, now: float, answered: float, refused: str = "") -> list[m.Action]:
        views = (RankView(1, TAKES_PART, position(4), position(5), answered=1, yes=True),)
        self.node.tick, self.node.contact.answered = m.Tick(refused=refused, stop_views=views), answered
        return self.stop.on(self.node, self.node.tick, now)


@pytest.mark.parametrize("word", [None, Word(ASK, 1, position(5))])
@pytest.mark.parametrize(
    ("now", "refused", "why"),
    [(VANISHED + 1.0, "", "no answer for 30 s"), (VANISHED + 0.9, "", ""), (3.0, REFUSED, REFUSED)],
)
def test_node_whose_store_is_gone_withdraws_alone(
    word: Word | None, now: float, refused: str, why: str
) -> None:
    """Its ranks would wait at the place until --term-timeout kills them; and it needs no store for that."""
    job = Stopped(word)
    job.tick(0.0, 0.0)
    job.tick(1.0, 1.0)
    actions = job.tick(now, 1.0, refused)
    pages = [each.word.kind for each in actions if isinstance(each, m.WriteStopPages)]
    assert (pages, job.stop.is_closed) == (([WITHDRAW], True) if why else ([], False))
    if why:
        (line,) = [each for each in actions if isinstance(each, m.Log)]
        assert f"the node that hosts the rendezvous is gone ({why})" in line.text
        assert line.level == logging.WARNING and not [each for each in actions if isinstance(each, m.Cas)]
        job.node.view[job.node.key("word")] = Word(COMMIT, 1, position(5)).encode()
        assert job.tick(now + 1.0, now + 1.0) == [], "a word after the withdrawal counts"


def test_commit_that_was_read_stands_without_the_store() -> None:
    job = Stopped(Word(COMMIT, 1, position(9)))
    for now in (0.0, 1.0, 2 * VANISHED):
        job.tick(now, 0.0, REFUSED if now else "")
    assert job.stop.is_committed and not job.stop.is_closed


def test_host_of_the_store_never_withdraws_for_its_silence() -> None:
    job = Stopped(is_host=True)
    for now in (0.0, 1.0, 2 * VANISHED):
        job.tick(now, 0.0, REFUSED)
    assert not job.stop.is_closed


# -- positions -----------------------------------------------------------------------------------------------

BATCHES = st.integers(0, MOST_BATCHES)
WITHIN = st.integers(0, END)


@given(BATCHES, WITHIN, BATCHES, WITHIN)
def test_positions_are_ordered_as_boundaries_are(k: int, v: int, other_k: int, other_v: int) -> None:
    assert (position(k, v) < position(other_k, other_v)) == ((k, v) < (other_k, other_v))
    assert (batches_of(position(k, v)), validation_of(position(k, v))) == (k, v)
    assert 0 <= position(k, v) < 1 << 63


def test_what_is_too_much_for_a_position_stays_before_the_end() -> None:
    assert position(3, END - 1) == position(3, END + 5) < position(3, END) < position(4)
    last = in_loader(2, LOADER_END - 1)
    assert last == in_loader(2, LOADER_END + 7) < in_loader(2, LOADER_END) < in_loader(3, 1)
    assert in_loader(MOST_LOADERS, 1) == in_loader(MOST_LOADERS + 3, LOADER_END) == END - 1


@pytest.mark.parametrize(
    ("call", "place", "error"),
    [
        (position, (-1, 0), "-1 batches, 0 of a validation"),
        (position, (0, -1), "0 batches, -1 of a validation"),
        (position, (MOST_BATCHES + 1, 0), f"{MOST_BATCHES + 1} batches, 0 of a validation"),
        (in_loader, (-1, 1), "batch 1 of data loader -1"),
        (in_loader, (0, 0), "batch 0 of data loader 0"),
        (in_loader, (2, 0), "batch 0 of data loader 2"),
    ],
)
def test_what_is_no_position(call: Callable[..., int], place: tuple[int, int], error: str) -> None:
    with pytest.raises(ValueError, match=f"no position: {error}"):
        call(*place)


@given(
    st.integers(0, MOST_LOADERS - 1),
    st.integers(1, LOADER_END),
    st.integers(0, MOST_LOADERS - 1),
    st.integers(1, LOADER_END),
)
def test_the_batches_of_data_loaders_are_ordered(
    loader: int, batch: int, other: int, other_batch: int
) -> None:
    place = in_loader(loader, batch)
    assert 0 < place < END and loader_of(place) == (loader, batch)
    assert loader or batch == LOADER_END or place == batch
    assert (place < in_loader(other, other_batch)) == ((loader, batch) < (other, other_batch))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (position(120), "after batch 120"),
        (position(120, 7), "after batch 120, in validation, batch 7"),
        (position(120, END), "after batch 120, at the end of validation"),
        (position(0), "before the first batch"),
        (position(120, in_loader(0, 7)), "after batch 120, in validation, batch 7"),
        (position(120, in_loader(1, 1)), "after batch 120, in validation, loader 2, batch 1"),
        (position(120, in_loader(0, LOADER_END)), "after batch 120, in validation, at the end of loader 1"),
        (position(0, 2), "before the first batch, in validation, batch 2"),
    ],
)
def test_a_position_in_words(place: int, words: str) -> None:
    assert describe(place) == words
