"""The page that the launcher and its monitors share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import BoardError
from holdfast.fault_tolerance.monitor.control import FILE, LARGEST, RUNNING, STOPPING, Channel, ControlPage
from holdfast.fault_tolerance.monitor.deadlines import KEPT


@pytest.fixture
def page(shm: Path) -> Iterator[ControlPage]:
    page = ControlPage.create(str(shm))
    yield page
    page.close()


def test_what_one_side_writes_the_other_reads(page: ControlPage, shm: Path) -> None:
    other = ControlPage(str(shm))
    page.epoch = 7
    page.enter(RUNNING, 3)
    other.record_scan(11, 22)
    assert (other.epoch, other.cycle, other.phase) == (7, 3, RUNNING)
    assert (page.tick, page.last_scan) == (1, (11, 22))
    page.enter(STOPPING, 3)
    assert other.phase == STOPPING
    other.close()


def test_a_gap_that_a_successor_notices_again_counts_once(page: ControlPage) -> None:
    """The first to notice it died before it had noted that it had looked."""
    page.add_suspension(10, 90)
    page.add_suspension(10, 95)
    assert page.suspensions.spans == ((10, 95),)


def test_only_the_last_gaps_are_kept_and_nothing_else_is_overwritten(page: ControlPage) -> None:
    page.epoch = 7
    page.enter(RUNNING, 3)
    page.record_scan(11, 22)
    for number in range(KEPT + 30):
        page.add_suspension(number, number + 1)
    assert page.suspensions.spans == tuple((number, number + 1) for number in range(30, KEPT + 30))
    assert (page.epoch, page.cycle, page.phase, page.tick, page.last_scan) == (7, 3, RUNNING, 1, (11, 22))


def test_what_is_no_page_is_refused(page: ControlPage, shm: Path) -> None:
    with pytest.raises(FileExistsError):
        ControlPage.create(str(shm))
    (shm / FILE).write_bytes(bytes(4096))
    with pytest.raises(BoardError, match="no control page of this version of holdfast"):
        ControlPage(str(shm))


# -- messages ------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ends = [Channel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    yield ends[0], ends[1]
    for end in ends:
        end.close()


def test_a_reader_that_sleeps_costs_messages_and_no_time(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    sent = 0
    while ours.send({"number": sent, "filler": "x" * 1000}):
        sent += 1
        assert sent < 100_000, "the buffer must have an end"
    arrived = [message["number"] for message in theirs.receive()]
    assert arrived == list(range(sent))
    assert ours.send({"number": -1})


def test_one_too_large_goes_without_its_lists(pair: tuple[Channel, Channel]) -> None:
    """A verdict with very many, very long descriptions of the other ranks is still a verdict."""
    ours, theirs = pair
    verdict = {"event": "verdict", "rank": 5, "others": [{"where": "x" * 2000}] * 64}
    assert len(str(verdict)) > LARGEST
    assert ours.send(verdict)
    assert list(theirs.receive()) == [{"event": "verdict", "rank": 5}]


def test_after_the_other_end_is_gone_sending_and_reading_are_harmless(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    theirs.close()
    assert not ours.send({"event": "gap"})
    assert list(ours.receive()) == []


def test_garbage_is_left_out(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    with socket.fromfd(ours.fileno(), socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        raw.send(b"{not json")
    ours.send({"event": "gap"})
    assert list(theirs.receive()) == [{"event": "gap"}]
