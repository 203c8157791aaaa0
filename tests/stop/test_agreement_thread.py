"""The launcher's thread, on real pages and, for two nodes, over a real store; the test's threads are the ranks."""

from __future__ import annotations

import logging
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore

from holdfast.fault_tolerance.launcher.agent.agreement import Agreement
from holdfast.fault_tolerance.launcher.nodes.reachable import Endpoint
from holdfast.fault_tolerance.launcher.nodes.records import StopAsked
from holdfast.fault_tolerance.launcher.nodes.stop_notes import WANTED, MemoryNotes, StoreNotes
from holdfast.fault_tolerance.launcher.nodes.stop_watch import StopWatch, wanted_text
from holdfast.fault_tolerance.launcher.ranks.stop_pages import StopPages
from holdfast.fault_tolerance.stop import StopPoint, position
from holdfast.fault_tolerance.stop import page as P
from holdfast.fault_tolerance.stop.notes import COMMIT, WORD, Report, Word
from holdfast.fault_tolerance.stop.page import PageFile, page_path
from tests.processes import wait_until

HOST = "127.0.0.1"


class Here:
    """A node with two ranks: its pages, and the ranks' points."""

    def __init__(self, folder: Path, first_rank: int) -> None:
        self.pages = StopPages()
        self._boards = {local: str(folder / f"{first_rank + local}.board") for local in range(2)}
        self.pages.open(self._boards)
        for local in range(2):
            self.pages.admit(local, first_rank + local)
        self.points = [StopPoint(PageFile(page_path(board), held=True)) for board in self._boards.values()]
        self.records: list[tuple[str, dict[str, Any]]] = []
        self._agreements: list[Agreement] = []

    def begin(self) -> None:
        for point in self.points:
            point.begin()

    def agree(self, notes: MemoryNotes | StoreNotes, node: int = 0, world: int = 1, **more: Any) -> Agreement:
        def record(kind: str, **fields: Any) -> None:
            self.records.append((kind, fields))

        agreement = Agreement(self.pages, notes, node, world, lambda local: False, record, **more)
        self._agreements.append(agreement)
        agreement.start()
        return agreement

    def close(self) -> None:
        for agreement in self._agreements:
            agreement.close()
            assert not agreement.is_alive()
        for point in self.points:
            point.end()
        self.pages.close()


@pytest.fixture
def node() -> Iterator[Callable[[], Here]]:
    """Makes a node."""
    folder = Path(tempfile.mkdtemp(prefix="hf-test-stop-", dir="/dev/shm"))
    made: list[Here] = []

    def make() -> Here:
        made.append(Here(folder, 2 * len(made)))
        return made[-1]

    yield make
    for here in made:
        here.close()
    shutil.rmtree(folder)


class Trains:
    """A rank that comes from batch to batch until it stops or is told to pause."""

    def __init__(self, point: StopPoint) -> None:
        self.batch, self.paused = 0, threading.Event()
        self._point, self._ended = point, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.002):
            if not self.paused.is_set():
                self.batch += 1
                if self._point.passes(position(self.batch)):
                    return

    def stopped(self) -> int:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.batch

    def end(self) -> int:
        self._ended.set()
        return self.stopped()


def test_who_holds_it_up_is_named_once(node: Callable[[], Here], caplog: pytest.LogCaptureFixture) -> None:
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


class Meeting:
    """The rendezvous store, and what connects to it."""

    def __init__(self) -> None:
        self.store: TCPStore | None = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.port = self.store.port
        self._notes: list[StoreNotes] = []

    def notes(self) -> StoreNotes:
        port = self.port
        connect = lambda: PrefixStore("job", TCPStore(HOST, port, is_master=False))  # noqa: E731
        self._notes.append(StoreNotes(connect, Endpoint(HOST, port), 0))
        return self._notes[-1]

    def own(self) -> PrefixStore:
        assert self.store is not None
        return PrefixStore("job", self.store)

    def close(self) -> None:
        for notes in self._notes:
            notes.close()
        self.store = None


@pytest.fixture(scope="module", autouse=True)
def _libuv_has_begun() -> None:
    """The first store of a process opens a pipe that libuv keeps for ever: that is nobody's leak."""
    TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    """A store that is closed after the test."""
    made = Meeting()
    yield made
    made.close()


def test_two_nodes_agree_over_a_store(node: Callable[[], Here], meeting: Meeting) -> None:
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
    node: Callable[[], Here], meeting: Meeting, caplog: pytest.LogCaptureFixture
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


def test_another_nodes_stop_is_noticed_once(node: Callable[[], Here], meeting: Meeting) -> None:
    here, events = node(), queue.SimpleQueue[object]()
    watch, notes = StopWatch(here.pages, events.put), meeting.notes()
    notes.put(WANTED, wanted_text("b", 15))
    watch.look(meeting.own(), 0, 1)
    assert events.empty()  # no rank takes part here
    here.begin()
    for _ in range(2):
        watch.look(meeting.own(), 0, 1)
    assert events.get_nowait() == StopAsked(0, "b", 15) and events.empty()


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_whose_ranks_take_no_part_says_so(
    node: Callable[[], Here], meeting: Meeting, number: int
) -> None:
    here, events = node(), queue.SimpleQueue[object]()
    watch, notes = StopWatch(here.pages, events.put, patience=0.0), meeting.notes()
    notes.put(WANTED, wanted_text("b", 15))
    watch.look(meeting.own(), 0, number)
    if number == 0:
        word = Word.decode(notes.look(WORD))
        assert word.final and word.kind != COMMIT and word.absent == (0, 1)
    else:
        assert Report.decode(notes.look("arrived/1")).absent == (0, 1)
    assert events.empty()
