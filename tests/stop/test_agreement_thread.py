"""The launcher's thread, on real pages and, for two nodes, over a real store; the test's threads are the ranks."""

from __future__ import annotations

import logging
import queue

import pytest

from holdfast.fault_tolerance.launcher.nodes.records import StopAsked
from holdfast.fault_tolerance.launcher.nodes.stop_notes import WANTED, MemoryNotes
from holdfast.fault_tolerance.launcher.nodes.stop_watch import StopWatch, wanted_text
from holdfast.fault_tolerance.stop import page as P
from holdfast.fault_tolerance.stop import position
from holdfast.fault_tolerance.stop.notes import COMMIT, WORD, Report, Word
from tests.processes import wait_until

from .nodes import HOST, Make, Meeting, Trains


def test_who_holds_it_up_is_named_once(node: Make, caplog: pytest.LogCaptureFixture) -> None:
    here = node()
    here.begin()
    for _ in range(7):
        here.points[1].passes(position(7))
    other = Trains(here.points[0])
    with caplog.at_level(logging.INFO):
        agreement = here.agree(MemoryNotes(), unsaid=0.1)
        wait_until(lambda: "no agreement" in caplog.text)
        wait_until(lambda: other.batch > 7)
        batch = 7
        while not here.points[1].passes(position(batch)):
            batch += 1
        assert other.stopped() == batch
        agreement.join(30)
    text = caplog.text
    assert "no agreement on where all ranks stop after 0 s: rank 1 is after batch 7\n" in text
    assert text.count("no agreement") == 1 and f"all ranks stop after batch {batch}\n" in text
    ((kind, fields),) = here.records
    assert kind == "stop_agreed" and fields["place"] == f"after batch {batch}"


def test_two_nodes_agree_over_a_store(node: Make, meeting: Meeting) -> None:
    nodes = [node(), node()]
    for here in nodes:
        here.begin()
    ranks = [Trains(point) for here in nodes for point in here.points]
    # These ranks are in no lockstep: who is far ahead would only say no, so they wait for the place.
    agreements = [
        nodes[1].agree(meeting.notes(), 1, 2, wanted=(WANTED, wanted_text("b", 15))),
        nodes[0].agree(meeting.notes(), 0, 2),
    ]
    assert len({rank.stopped() for rank in ranks}) == 1
    for agreement in agreements:
        agreement.join(30)
    assert [kind for here in nodes for kind, _ in here.records] == ["stop_agreed"] * 2


def test_a_store_that_is_gone_lets_the_ranks_go_on(
    node: Make, meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    here = node()
    here.begin()
    meeting.notes().put(WORD, Word("ask", 1, position(0, 1)).encode())
    here.agree(meeting.notes(), 1, 2)
    page = here.points[0]._words
    wait_until(lambda: page[P.NUMBER] == 1)
    waiting = Trains(here.points[0])
    wait_until(lambda: page[P.AT] == position(1))
    meeting.store = None
    wait_until(lambda: waiting.batch > 3)
    waiting.end()
    assert (
        "each rank stops by itself" in caplog.text
        and f"nobody listens at {HOST}:{meeting.port}" in caplog.text
    )
    assert here.points[0].given_up and [kind for kind, _ in here.records] == ["stop_withdrawn"]


def test_another_nodes_stop_is_noticed_once(node: Make, meeting: Meeting) -> None:
    here, events = node(), queue.SimpleQueue[object]()
    watch, notes = StopWatch(here.pages, events.put), meeting.notes()
    notes.put(WANTED, wanted_text("b", 15))
    assert notes.look(WANTED)  # the store has it: nobody answers who only writes
    watch.look(meeting.own(), 0, 1)
    assert events.empty()  # no rank takes part here
    here.begin()
    for _ in range(2):
        watch.look(meeting.own(), 0, 1)
    assert events.get_nowait() == StopAsked(0, "b", 15) and events.empty()


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_whose_ranks_take_no_part_says_so(node: Make, meeting: Meeting, number: int) -> None:
    here, events = node(), queue.SimpleQueue[object]()
    watch, notes = StopWatch(here.pages, events.put, patience=0.0), meeting.notes()
    notes.put(WANTED, wanted_text("b", 15))
    assert notes.look(WANTED)  # the store has it: nobody answers who only writes
    watch.look(meeting.own(), 0, number)
    if number == 0:
        word = Word.decode(notes.look(WORD))
        assert word.final and word.kind != COMMIT and word.absent == (0, 1)
    else:
        assert Report.decode(notes.look("arrived/1")).absent == (0, 1)
    assert events.empty()
