"""Launcher, rank and monitor on one board: each sees what the others wrote, and none more than it may."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import (
    Board,
    BoardError,
    BoardReader,
    BoardUnavailable,
    BoardWriter,
    Limits,
    OpenSection,
    layout,
)
from tests.boards import identity
from tests.monitor.node import few_descriptors


def test_a_new_board_is_private_allocated_and_silent(shm: Path) -> None:
    board = Board.create(
        str(shm / "deep" / "cycle-3" / "7.board"), Limits(initial=5.0, initial_set_by_user=True)
    )
    status = os.stat(board.path)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert {stat.S_IMODE(os.stat(folder).st_mode) for folder in (shm / "deep", shm / "deep/cycle-3")} == {
        0o700
    }
    assert status.st_size == layout.BOARD_BYTES <= status.st_blocks * 512
    snapshot = board.snapshot()
    assert (snapshot.identity, snapshot.connected, snapshot.finished) == (None, False, False)
    assert (snapshot.heartbeat_count, snapshot.step, snapshot.open_sections) == (0, None, ())
    assert (snapshot.out_of_section_since_ns, snapshot.last_activity_ns) == (0, 0)
    assert snapshot.limits == Limits(initial=5.0, initial_set_by_user=True)
    assert snapshot.consistent and board.events() == []


def test_a_second_board_at_the_same_place_is_refused(board: Board) -> None:
    with pytest.raises(BoardError, match="exists already"):
        Board.create(board.path, Limits())


def test_a_planted_symlink_is_not_followed(shm: Path) -> None:
    (shm / "0.board").symlink_to(shm / "elsewhere")
    with pytest.raises(BoardError):
        Board.create(str(shm / "0.board"), Limits())
    assert not (shm / "elsewhere").exists()


def test_admission(board: Board, writer: BoardWriter) -> None:
    assert writer.identity is None
    first, second = identity(pid=11), identity(pid=12, rank=3)
    board.bind_process(first)
    assert writer.identity == first == board.snapshot().identity
    board.bind_process(second)
    assert writer.identity == second


def test_the_story_of_a_rank(board: Board, writer: BoardWriter) -> None:
    reader = BoardReader(board.path)
    writer.connect()
    connected = reader.snapshot()
    assert (
        connected.connected
        and not connected.finished
        and connected.connected_ns == connected.last_activity_ns > 0
    )
    writer.heartbeat()
    writer.heartbeat(step=41)
    beaten = reader.snapshot()
    assert (beaten.heartbeat_count, beaten.step) == (2, 41)
    assert connected.last_activity_ns < beaten.last_heartbeat_ns == beaten.last_activity_ns
    assert writer.start_section("outer") and writer.start_section("inner")
    inside = reader.snapshot()
    assert [section.name for section in inside.open_sections] == ["outer", "inner"]
    assert inside.open_sections[0].since_ns < inside.open_sections[1].since_ns == inside.last_activity_ns
    assert (inside.section_count, inside.out_of_section_since_ns) == (2, 0)
    assert writer.end_section("outer")  # they may overlap
    assert reader.snapshot().open_sections == (OpenSection("inner", inside.open_sections[1].since_ns),)
    assert reader.snapshot().out_of_section_since_ns == 0
    assert writer.end_section("inner")
    outside = reader.snapshot()
    assert outside.open_sections == () and outside.out_of_section_since_ns == outside.last_activity_ns
    writer.finish()
    assert reader.snapshot().finished and reader.snapshot() == board.snapshot()
    kinds = [(event.kind, event.name, event.value) for event in reader.events()]
    assert kinds == [
        ("connect", "", 0),
        ("heartbeat", "", 0),
        ("step", "", 41),
        ("start", "outer", 0),
        ("start", "inner", 0),
        ("end", "outer", 0),
        ("end", "inner", 0),
        ("finish", "", 0),
    ]
    times = [event.at_ns for event in reader.events()]
    assert times == sorted(times)
    reader.close()
    reader.close()


@pytest.mark.parametrize("step", [0, -1, -7, (1 << 62) - 1])
def test_any_step_can_be_told_from_none(board: Board, writer: BoardWriter, step: int) -> None:
    writer.heartbeat(step=step)
    # -1 is what some programs call "not started": it reads as none.
    assert board.snapshot().step == (None if step == -1 else step)


@pytest.mark.parametrize(("step", "error"), [("12", TypeError), (1.5, TypeError), (1 << 62, ValueError)])
def test_a_step_that_is_none_leaves_the_board_whole(
    board: Board, writer: BoardWriter, step: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        writer.heartbeat(step=step)  # type: ignore[arg-type]
    assert board.snapshot().consistent and board.snapshot().heartbeat_count == 0


def test_opening_twice_and_closing_what_is_closed_are_told(board: Board, writer: BoardWriter) -> None:
    assert not writer.end_section("step")
    assert writer.start_section("step")
    before = board.snapshot()
    assert not writer.start_section("step")
    assert board.snapshot() == before
    writer.end_all_sections()
    writer.end_all_sections()
    assert board.snapshot().open_sections == ()


def test_more_sections_than_there_is_room_for(
    board: Board, writer: BoardWriter, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"section {number}" for number in range(layout.MAX_SECTIONS + 10)]
    with caplog.at_level(logging.WARNING):
        assert all(writer.start_section(name) for name in names)
    assert [record for record in caplog.messages if "different section names" in record] == caplog.messages
    assert len(caplog.messages) == 1
    assert [section.name for section in board.snapshot().open_sections] == names[: layout.MAX_SECTIONS]
    assert board.snapshot().section_count == len(names)
    assert all(writer.end_section(name) for name in names)
    assert board.snapshot().open_sections == ()


def test_a_long_name_is_cut_and_finds_its_limit(board: Board, writer: BoardWriter) -> None:
    name = "ä" * 60
    writer.set_limits(Limits(sections={name: 5.0}))
    writer.start_section(name)
    assert [section.name for section in board.snapshot().open_sections] == ["ä" * 32]
    assert board.snapshot().limits.sections == {"ä" * 32: 5.0}


def test_the_ring_keeps_the_last_events(board: Board, writer: BoardWriter) -> None:
    total = 3 * layout.RING_EVENTS + 17
    for step in range(total):
        writer.heartbeat(step=step)
    values = [event.value for event in board.events()]
    # One slot fewer than the ring has: the oldest may be in use by an event that is being written.
    assert values == list(range(total - layout.RING_EVENTS + 1, total))


def test_a_client_that_connects_again_carries_on(board: Board) -> None:
    first = BoardWriter(board.path)
    first.connect()
    first.heartbeat(step=9)
    first.start_section("step")
    first.finish()
    first.detach()
    old = board.snapshot()
    assert old.finished and [section.name for section in old.open_sections] == ["step"]
    second = BoardWriter(board.path)
    second.connect()
    again = board.snapshot()
    assert again.connected and not again.finished and again.open_sections == ()
    # Neither clock runs on from before: the time between the two clients belongs to neither.
    assert (
        again.last_heartbeat_ns == again.out_of_section_since_ns == again.connected_ns > old.last_activity_ns
    )
    second.heartbeat()
    assert (board.snapshot().heartbeat_count, board.snapshot().step) == (2, 9)
    second.detach()


def test_a_detached_writer_goes_on_without_a_reader(board: Board) -> None:
    writer = BoardWriter(board.path)
    writer.start_section("step")
    writer.detach()
    writer.detach()
    before = board.snapshot()
    writer.heartbeat()
    assert writer.end_section("step") and not writer.attached and writer.identity is None
    assert board.snapshot() == before


@pytest.mark.parametrize("open_it", [BoardReader, BoardWriter, Board])
def test_what_is_no_regular_file_is_refused_at_once(shm: Path, open_it: Callable[[str], object]) -> None:
    os.mkfifo(shm / "pipe")
    with pytest.raises(BoardError, match="no regular file"):
        open_it(str(shm / "pipe"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("open_it", [BoardReader, BoardWriter, Board])
def test_a_board_of_another_user_is_refused(board: Board, open_it: Callable[[str], object]) -> None:
    """Who planted it could have any process of ours signalled."""
    os.chown(board.path, 65534, 65534)
    with pytest.raises(BoardError, match="belongs to user 65534, this process to user 0"):
        open_it(board.path)


def test_a_full_tmpfs_is_no_board_and_no_rubbish(small_tmpfs: Callable[[str], Path]) -> None:
    path = small_tmpfs("20k") / "cycle-0" / "0.board"  # five pages: less than a board
    with pytest.raises(BoardUnavailable, match="No space left on device") as raised:
        Board.create(str(path), Limits())
    assert str(path) in str(raised.value) and "without supervision" in str(raised.value)
    assert str(raised.value).endswith("free space on this filesystem")
    assert list(path.parent.iterdir()) == []


# -- no board ------------------------------------------------------------------------------------------------


@pytest.mark.check
def test_too_many_open_files_are_no_matter_of_space(tmp_path: Path) -> None:
    with pytest.raises(BoardUnavailable, match="Too many open files") as raised, few_descriptors(0):
        Board.create(str(tmp_path / "0.board"), Limits())
    assert str(raised.value).endswith("without supervision; raise the limit of open files (ulimit -n)")


@pytest.mark.check
def test_nor_is_a_filesystem_that_takes_no_files() -> None:
    with pytest.raises(BoardUnavailable) as raised:
        Board.create("/proc/0.board", Limits())
    assert "space" not in str(raised.value)
