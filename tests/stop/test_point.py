"""The rank's side on a real page; the test plays the launcher."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.stop import StopPoint, position
from holdfast.fault_tolerance.stop import page as P
from holdfast.fault_tolerance.stop.page import PageFile, StopPages, page_path
from holdfast.fault_tolerance.stop.rules import ENDED, TAKES_PART
from tests.processes import Spawner, wait_until

NOTHING = (0, 0)


def propose(page: PageFile, number: int, place: int) -> None:
    page.words[P.PLACES + number % P.SLOTS] = place
    page.words[P.NUMBER] = number


def answer(page: PageFile) -> tuple[int, bool]:
    return page.words[P.ANSWER] >> 1, bool(page.words[P.ANSWER] & 1)


@pytest.fixture
def point(page: PageFile) -> Iterator[StopPoint]:
    found = StopPoint.find()
    assert found is not None
    found.begin()
    yield found
    found.end()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A thread in which a rank may wait at a boundary."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_without_a_launcher_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, raising=False)
    assert StopPoint.find() is None


def test_a_board_without_a_page_is_no_reason_to_say_anything(
    board_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert StopPoint.find() is None
    assert not caplog.records


@pytest.mark.parametrize("damage", [b"", b"x" * P.SIZE])
def test_a_damaged_page_is_said_once(
    board_path: str, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    Path(page_path(board_path)).write_bytes(damage)
    assert StopPoint.find() is None and StopPoint.find() is None
    (line,) = caplog.records
    assert f"takes part in no agreed stop: {page_path(board_path)}: no page for" in line.getMessage()


def test_usually_it_goes_on_and_shows_where_it_is(page: PageFile, point: StopPoint) -> None:
    assert page.words[P.STATE] == TAKES_PART
    for batches in range(1, 5):
        assert point.passes(position(batches)) is False
        assert page.words[P.POSITION] == position(batches)
    assert answer(page) == NOTHING and not point.wanted and point.deadline is None and not point.given_up
    point.end()
    assert page.words[P.STATE] == ENDED


def test_it_agrees_to_a_place_ahead_and_stops_there_once_that_is_committed(
    page: PageFile, point: StopPoint, pool: ThreadPoolExecutor
) -> None:
    point.passes(position(4))
    propose(page, 1, position(5, 1))
    assert point.passes(position(5)) is False
    assert answer(page) == (1, True)
    beats: list[float] = []
    point.waiting = lambda: beats.append(time.monotonic())
    waiting = pool.submit(point.passes, position(6))
    wait_until(lambda: page.words[P.AT] == position(6) and beats)
    assert page.words[P.POSITION] == position(5)  # it has not gone past
    page.words[P.COMMITTED] = 1
    assert waiting.result(30) is True
    assert point.passes(position(6)) is True  # a second call has the same answer
    point.end()


def test_it_refuses_a_place_that_it_has_passed(page: PageFile, point: StopPoint) -> None:
    point.passes(position(7))
    propose(page, 1, position(6, 1))
    assert point.passes(position(8)) is False
    assert answer(page) == (1, False)
    propose(page, 2, position(8, 1))
    assert point.passes(position(8)) is False  # a boundary told twice is no place beyond
    assert answer(page) == (2, True)
    page.words[P.COMMITTED] = 2
    assert point.passes(position(9)) is True


@pytest.mark.parametrize("where", ["farther", "withdrawn"])
def test_a_rank_that_waits_goes_on_when_the_place_changes(
    page: PageFile, point: StopPoint, pool: ThreadPoolExecutor, where: str
) -> None:
    point.passes(position(4))
    propose(page, 1, position(4, 1))
    waiting = pool.submit(point.passes, position(5))
    wait_until(lambda: answer(page) == (1, True))
    if where == "farther":
        propose(page, 2, position(6, 1))
    else:
        page.words[P.WITHDRAWN] = 1
    assert waiting.result(30) is False
    assert page.words[P.POSITION] == position(5)
    assert answer(page) == (2 if where == "farther" else 1, True)
    assert point.given_up == (where == "withdrawn")
    assert point.passes(position(6)) is False


def test_what_it_says_of_the_stop(page: PageFile, point: StopPoint) -> None:
    point.notice(15)
    assert page.words[P.NOTICE] == 15 and point.wanted
    page.words[P.DEADLINE] = 7_500_000_000
    assert point.deadline == 7.5
    point.end()
    assert point.wanted and point.deadline == 7.5 and point.passes(position(3)) is False
    point.end()


def test_another_training_of_the_process_after_the_stop_stops_at_once(
    page: PageFile, point: StopPoint
) -> None:
    propose(page, 1, position(4, 1))
    page.words[P.COMMITTED] = 1
    assert point.passes(position(5)) is True
    point.end()
    again = StopPoint.find()
    assert again is not None
    again.begin()
    assert again.passes(position(1)) is True
    again.end()


def test_a_forked_child_writes_nothing(page: PageFile, point: StopPoint) -> None:
    point.passes(position(3))
    child = os.fork()
    if child == 0:
        try:
            point.notice(15)
            point.passes(position(9))
            point.end()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    words = page.words
    assert (words[P.NOTICE], words[P.POSITION], words[P.STATE]) == (0, position(3), TAKES_PART)
    point.passes(position(4))
    assert words[P.POSITION] == position(4)


def test_a_program_that_the_rank_starts_does_not_take_part(
    page: PageFile, point: StopPoint, spawn: Spawner
) -> None:
    child = spawn.python("from holdfast.fault_tolerance.stop import StopPoint; print(StopPoint.find())")
    assert child.wait() == 0
    assert child.out() == "None\n"
    assert "another process of this rank takes part already" in child.err()


# -- the launcher's pages ------------------------------------------------------------------------------------


@pytest.mark.check
def test_a_page_that_cannot_be_mapped_is_said_and_taken_away(
    board_path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", fails)
    pages = StopPages()
    pages.open({0: board_path})
    assert not pages and not Path(page_path(board_path)).exists()
    assert "local rank 0 takes no part in an agreed stop" in caplog.text
    assert "Cannot allocate memory" in caplog.text
