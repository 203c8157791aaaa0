"""The layout: what is rejected at the door, what survives the way into words and back, and totals per section."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import (
    Board,
    BoardError,
    BoardReader,
    BoardWriter,
    Limits,
    Request,
    SectionTotal,
    layout,
)
from holdfast.fault_tolerance.board.mapped import private_words
from holdfast.fault_tolerance.board.writer import reset

NAMES = st.text(max_size=80)
SECONDS = st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(st.text(), st.integers(0, 100))
def test_cut_keeps_whole_characters(text: str, limit: int) -> None:
    raw = layout.cut(text, limit)
    assert len(raw) <= limit
    assert text.encode("utf-8", "replace").decode().startswith(raw.decode("utf-8"))
    assert len(raw) > limit - 4 or raw == text.encode("utf-8", "replace")


@given(
    SECONDS, SECONDS, SECONDS, st.booleans(), st.dictionaries(NAMES, SECONDS, max_size=layout.MAX_SECTIONS)
)
def test_limits_survive(
    initial: float | None,
    subsequent: float | None,
    out: float | None,
    by_user: bool,
    sections: dict[str, float | None],
) -> None:
    words = private_words(layout.RANK_BYTES)[layout.RARE : layout.STATE_WORDS]
    limits = Limits(initial, subsequent, sections, out, by_user)
    layout.write_limits(words, limits)
    read = layout.read_limits(words)
    assert (read.initial, read.subsequent, read.out_of_section) == (initial, subsequent, out)
    assert read.initial_set_by_user == by_user
    cut = {layout.cut(name, layout.NAME_BYTES).decode(): value for name, value in sections.items()}
    assert read.sections == cut


@given(st.sampled_from(layout.REQUEST_ACTIONS), st.text(max_size=2000))
def test_a_request_survives(action: str, description: str) -> None:
    words = private_words(layout.RANK_BYTES)[layout.RARE : layout.STATE_WORDS]
    assert layout.read_request(words) is None
    layout.write_request(words, Request(action, description))
    cut = layout.cut(description, layout.REQUEST_BYTES).decode()
    assert layout.read_request(words) == Request(action, cut)


def test_an_unknown_action_changes_nothing() -> None:
    words = private_words(layout.RANK_BYTES)[layout.RARE : layout.STATE_WORDS]
    with pytest.raises(ValueError, match="reboot"):
        layout.write_request(words, Request("reboot", ""))
    assert layout.read_request(words) is None


def _header(
    magic: int = layout.MAGIC, version: int = layout.VERSION, size: int = layout.BOARD_BYTES
) -> bytes:
    head = memoryview(bytearray(layout.P_WORDS * layout.WORD)).cast("q")
    head[layout.P_MAGIC], head[layout.P_VERSION], head[layout.P_SIZE] = magic, version, size
    return bytes(head)


@pytest.mark.parametrize(
    ("head", "size", "found"),
    [
        (_header(magic=int.from_bytes(b"\x7fELF....", sys.byteorder)), layout.BOARD_BYTES, "ELF"),
        (_header(version=7), layout.BOARD_BYTES, f"version 7, this holdfast reads version {layout.VERSION}"),
        (_header(size=99), layout.BOARD_BYTES, "declares 99"),
        (_header(), layout.BOARD_BYTES - 1, f"{layout.BOARD_BYTES} expected"),
        (_header(), layout.BOARD_BYTES + 4096, f"{layout.BOARD_BYTES} expected"),
        (b"", 0, "0 bytes found"),
        (_header()[:40], 40, "40 bytes found"),
    ],
    ids=["magic", "version", "declared size", "truncated", "too long", "empty", "half a header"],
)
def test_what_is_not_a_board_is_named(shm: Path, head: bytes, size: int, found: str) -> None:
    path = shm / "x.board"
    path.write_bytes(head)
    os.truncate(path, size)
    for open_it in (BoardReader, BoardWriter):
        with pytest.raises(BoardError, match=found) as raised:
            open_it(str(path))
        assert str(path) in str(raised.value)
        with pytest.raises(BoardError, match="No such file"):
            open_it(str(shm / "absent"))


# -- totals per section, and the step of the last checkpoint, whatever the rank did to its page --------------


PAGE = layout.IDENTITY_BYTES // layout.WORD


class Clock:
    """Replaces the clock of a writer; `at` is in nanoseconds."""

    at = 1_000

    def __call__(self) -> int:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("holdfast.fault_tolerance.board.writer.monotonic_ns", clock)
    return clock


@pytest.fixture
def writer(writer: BoardWriter) -> BoardWriter:
    """A rank's, connected."""
    writer.connect()
    return writer


def spend(writer: BoardWriter, clock: Clock, name: str, spent_ns: int) -> None:
    """Open a section for this long."""
    writer.start_section(name)
    clock.at += spent_ns
    writer.end_section(name)


def test_totals_of_closed_sections_add_up(board: Board, writer: BoardWriter, clock: Clock) -> None:
    """Each section has the whole of its own time, whatever is open beside it."""
    assert board.snapshot().section_totals == {}
    writer.start_section("epoch")
    for spent_ns in (70, 30, 50):
        spend(writer, clock, "step", spent_ns)
        clock.at += 1_000  # outside of sections, which no section gets
    spend(writer, clock, "data", 5)
    closed = {"step": SectionTotal(3, 150), "data": SectionTotal(1, 5)}
    assert board.snapshot().section_totals == closed
    writer.end_section("epoch")
    assert board.snapshot().section_totals == {**closed, "epoch": SectionTotal(1, 3155)}


def test_totals_leave_out_sections_without_a_slot(board: Board, writer: BoardWriter, clock: Clock) -> None:
    names = [f"section {number}" for number in range(layout.MAX_SECTIONS + 3)]
    for name in names:
        spend(writer, clock, name, 7)
    expected = {name: SectionTotal(1, 7) for name in names[: layout.MAX_SECTIONS]}
    assert board.snapshot().section_totals == expected


def test_totals_survive_another_connection_of_the_process(
    board: Board, writer: BoardWriter, clock: Clock
) -> None:
    spend(writer, clock, "step", 70)
    writer.start_section("left open")
    writer.finish()
    writer.connect()
    assert board.snapshot().section_totals == {"step": SectionTotal(1, 70)}
    writer.detach()
    second = BoardWriter(board.path)
    spend(second, clock, "step", 30)
    assert board.snapshot().section_totals == {"step": SectionTotal(2, 100)}
    second.detach()


def test_totals_begin_anew_with_another_owner(board: Board, writer: BoardWriter, clock: Clock) -> None:
    writer.heartbeat(7)
    spend(writer, clock, "checkpointing", 70)
    reset(writer._words)
    assert (board.snapshot().section_totals, board.snapshot().checkpoint_step) == ({}, None)


@pytest.mark.parametrize("word", [-1, 1 << 62, layout.LARGEST, -(1 << 63)])
@pytest.mark.parametrize(
    "at", [layout.SPENT, layout.CLOSED, layout.CHECKPOINTS, layout.CHECKPOINT_STEP, layout.STEP]
)
def test_totals_on_a_scribbled_page_fail_nobody(
    board: Board, writer: BoardWriter, clock: Clock, at: int, word: int
) -> None:
    spend(writer, clock, "checkpointing", 70)
    board._words[PAGE + at] = word
    board.snapshot()
    spend(writer, clock, "checkpointing", layout.LARGEST - clock.at)
    writer.checkpoint()
    snapshot = board.snapshot()
    assert snapshot.consistent
    for total in snapshot.section_totals.values():
        assert 0 < total.count <= layout.LARGEST and 0 <= total.spent_ns <= layout.LARGEST


@pytest.mark.parametrize(
    ("step", "given", "expected"),
    [(None, 0, None), (None, 500, 500), (12, 0, 12), (12, 500, 500), (0, 0, 0)],
    ids=["no step", "given only", "heartbeat only", "given wins", "step 0"],
)
def test_step_of_a_checkpoint_outside_a_section(
    board: Board, writer: BoardWriter, step: int | None, given: int, expected: int | None
) -> None:
    writer.heartbeat(step)
    writer.checkpoint(given)
    writer.mark("eval", 3)
    assert board.snapshot().checkpoint_step == expected


def test_step_of_a_checkpoint_is_that_of_its_end(board: Board, writer: BoardWriter) -> None:
    writer.heartbeat(10)
    writer.start_section("step")
    writer.end_section("step")
    writer.start_section("checkpointing")
    assert board.snapshot().checkpoint_step is None
    writer.heartbeat(11)  # it is saved while training continues
    writer.end_section("checkpointing")
    writer.heartbeat(12)
    writer.start_section("step")
    writer.end_section("step")
    assert (board.snapshot().checkpoint_step, board.snapshot().step) == (11, 12)
