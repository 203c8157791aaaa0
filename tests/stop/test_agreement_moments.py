"""The launcher's thread at the moments that are rare: ranks that begin late, long saves, launchers that vanish."""

from __future__ import annotations

import logging
import queue

import pytest

from holdfast.fault_tolerance.launcher.agent.agreement import Agreement
from holdfast.fault_tolerance.launcher.nodes.stop_notes import WANTED, MemoryNotes
from holdfast.fault_tolerance.launcher.nodes.stop_watch import StopWatch, wanted_text
from holdfast.fault_tolerance.stop import page as P
from holdfast.fault_tolerance.stop import position
from holdfast.fault_tolerance.stop.notes import ASK, COMMIT, WORD, Report, Word, alive_key, arrival_key
from tests.processes import wait_until

from .nodes import Make, Meeting, Trains


def words_of(agreement: Agreement) -> Word | None:
    """What the node's party said or heard last."""
    return agreement._party.word


def test_ranks_that_begin_after_the_signal_agree(node: Make) -> None:
    here, begun = node(), list[str]()
    agreement = here.agree(MemoryNotes(), begins=lambda: begun.append("begins"))
    assert agreement.is_alive() and not begun
    here.begin()
    ranks = [Trains(point) for point in here.points]
    assert len({rank.stopped() for rank in ranks}) == 1
    agreement.join(30)
    assert [kind for kind, _ in here.records] == ["stop_agreed"] and begun == ["begins"]


def test_ranks_that_begin_much_later_know_that_nobody_asks_them(
    node: Make, caplog: pytest.LogCaptureFixture
) -> None:
    here = node()
    page = here.points[0]._words
    with caplog.at_level(logging.INFO):
        agreement = here.agree(MemoryNotes(), patience=0.05)
        wait_until(lambda: page[P.WITHDRAWN] != 0)
        assert not caplog.text and not here.records  # so it is for all who never take part
        here.begin()
        assert here.points[0].given_up and not here.points[0].passes(position(1))
        agreement.join(30)
    assert (
        "rank 0" in caplog.text
        and "began to take part more than 0 s after the signal; each rank stops by itself" in caplog.text
    )
    assert [kind for kind, _ in here.records] == ["stop_withdrawn"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_without_such_ranks_declines_for_those_who_wait(
    node: Make, meeting: Meeting, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    here, notes = node(), meeting.notes()
    with caplog.at_level(logging.INFO):
        here.agree(meeting.notes(), number, 2, patience=0.05)
        wait_until(lambda: bool(notes.look(arrival_key(1) if number else WORD)))
    assert not caplog.text and not here.records
    if number:
        assert Report.decode(notes.look(arrival_key(1))).absent == (0, 1)
    else:
        assert Word.decode(notes.look(WORD)).absent == (0, 1)


def test_a_stop_stays_agreed_while_ranks_that_have_ended_save(
    node: Make, meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    here, notes = node(), meeting.notes()
    notes.put(arrival_key(1), Report().encode())
    here.begin()
    with caplog.at_level(logging.INFO):
        agreement = here.agree(meeting.notes(), 0, 2, wanted=(WANTED, wanted_text("a", 15)), unsaid=0.1)
        ranks = [Trains(point) for point in here.points]
        number = 0
        while agreement.is_alive():  # the other node says yes to all
            word = words_of(agreement)
            if word is not None and word.number != number:
                number = word.number
                notes.put(f"answer/{number}/1", Report().encode())
            agreement.join(0.001)
        assert len({rank.stopped() for rank in ranks}) == 1
        for point in here.points:
            point.end()
        watch = StopWatch(here.pages, queue.SimpleQueue[object]().put, patience=0.0)
        watch.look(meeting.own(), 0, 0)
    assert Word.decode(notes.look(WORD)).kind == COMMIT
    assert "no agreement" not in caplog.text and [kind for kind, _ in here.records] == ["stop_agreed"]


def test_a_node_that_vanished_after_its_arrival_keeps_nobody(
    node: Make, meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    here, notes = node(), meeting.notes()
    notes.put(arrival_key(1), Report().encode())
    notes.put(alive_key(1), "1")
    here.begin()
    agreement = here.agree(meeting.notes(), 0, 2, vanished=0.4)
    page = here.points[0]._words
    wait_until(lambda: page[P.NUMBER] == 1)
    waiting = [Trains(point) for point in here.points]
    agreement.join(30)
    assert not agreement.is_alive()
    wait_until(lambda: waiting[0].batch > 3)
    for rank in waiting:
        rank.end()
    assert here.points[0].given_up
    assert "the launcher of node 1 is gone; each rank stops by itself, or is ended by" in caplog.text
    assert Word.decode(notes.look(WORD)).kind != COMMIT


def test_a_leader_that_vanished_keeps_nobody(node: Make, meeting: Meeting) -> None:
    nodes, notes = [node(), node()], meeting.notes()
    notes.put(WORD, Word(ASK, 1, position(0, 1)).encode())
    for number, here in enumerate(nodes, start=1):
        here.begin()
        here.agree(meeting.notes(), number, 3, vanished=0.4)
    pages = [point._words for here in nodes for point in here.points]
    wait_until(lambda: all(page[P.NUMBER] == 1 for page in pages))
    waiting = [Trains(point) for here in nodes for point in here.points]
    for rank in waiting:
        wait_until(lambda rank=rank: rank.batch > 3)  # type: ignore[misc]
        rank.end()
    wait_until(lambda: all(point.given_up for here in nodes for point in here.points))
    wait_until(lambda: all(here.records for here in nodes))
    assert [kind for here in nodes for kind, _ in here.records] == ["stop_withdrawn"] * 2


def test_a_launcher_that_ends_says_so(node: Make, meeting: Meeting) -> None:
    leads, follows = node(), node()
    leads.begin()
    agreement = leads.agree(meeting.notes(), 0, 3)
    follows.begin()
    other, notes = follows.agree(meeting.notes(), 1, 3), meeting.notes()
    wait_until(lambda: bool(notes.look(arrival_key(1))))
    other.close()
    notes.put(arrival_key(1), "")  # nothing else was heard of it
    wait_until(lambda: leads.points[0].given_up)
    agreement.join(30)
