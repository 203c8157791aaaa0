"""Messages between the monitor and the launcher: whole or not at all, and never a wait."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from holdfast.fault_tolerance.monitor.control import LARGEST, Channel


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ends = [Channel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    yield ends[0], ends[1]
    for end in ends:
        end.close()


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    assert ours.send({"event": "verdict", "text": "Wärme"})
    assert ours.send({"event": "gap", "seconds": 1.5})
    assert list(theirs.receive()) == [{"event": "verdict", "text": "Wärme"}, {"event": "gap", "seconds": 1.5}]
    assert list(theirs.receive()) == []


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
