"""Totals per section and the step of the last checkpoint: what a reader gets, whatever the rank did to its page."""

from __future__ import annotations

import pytest

from holdfast.fault_tolerance.board import Board, BoardWriter, SectionTotal, layout
from holdfast.fault_tolerance.board.writer import reset

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


@pytest.fixture(autouse=True)
def _connected(writer: BoardWriter) -> None:
    writer.connect()


def spend(writer: BoardWriter, clock: Clock, name: str, spent_ns: int) -> None:
    """Open a section for this long."""
    writer.start_section(name)
    clock.at += spent_ns
    writer.end_section(name)


def test_totals_of_closed_sections_add_up(board: Board, writer: BoardWriter, clock: Clock) -> None:
    assert board.snapshot().section_totals == {}
    for spent_ns in (70, 30, 50):
        spend(writer, clock, "step", spent_ns)
        clock.at += 1_000  # outside of sections, which no section gets
    spend(writer, clock, "data", 5)
    assert board.snapshot().section_totals == {"step": SectionTotal(3, 150), "data": SectionTotal(1, 5)}


def test_totals_leave_out_an_open_section(board: Board, writer: BoardWriter, clock: Clock) -> None:
    spend(writer, clock, "step", 70)
    writer.start_section("step")
    clock.at += 30
    assert board.snapshot().section_totals == {"step": SectionTotal(1, 70)}
    writer.end_section("step")
    assert board.snapshot().section_totals == {"step": SectionTotal(2, 100)}


def test_totals_of_nested_sections_each_have_all_their_time(
    board: Board, writer: BoardWriter, clock: Clock
) -> None:
    writer.start_section("outer")
    clock.at += 10
    spend(writer, clock, "inner", 100)
    clock.at += 10
    writer.end_section("outer")
    assert board.snapshot().section_totals == {"outer": SectionTotal(1, 120), "inner": SectionTotal(1, 100)}


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
