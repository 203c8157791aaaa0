"""A reader against a writer that never pauses, is stopped, or is killed in the middle of a write."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Board, BoardEvent, BoardReader, BoardWriter, Snapshot, layout
from tests.processes import Spawned, Spawner, wait_until

# Every field is tied to the others: whatever moment a reading is of, `_check` holds.
_WRITER = """
import sys
from holdfast.fault_tolerance.board import BoardWriter, Limits
writer = BoardWriter(sys.argv[1])
writer.connect()
print("writing", flush=True)
step = 0
while True:
    writer.heartbeat(step)
    writer.start_section("checkpointing")
    writer.end_section("checkpointing")
    step += 1
    if step % 40 == 0:
        writer.set_limits(Limits(step, step, {"checkpointing": step}, step))
"""


def _check(snapshot: Snapshot) -> None:
    beats, sections = snapshot.heartbeat_count, snapshot.section_count
    assert snapshot.step == (beats - 1 if beats else None)
    assert sections in (beats, beats - 1)
    assert snapshot.checkpoints == sections - len(snapshot.open_sections)
    last = -1 if snapshot.checkpoint_step is None else snapshot.checkpoint_step
    assert last in (snapshot.checkpoints - 1, snapshot.checkpoints - 2)  # stored just after the closing
    assert sum(total.count for total in snapshot.section_totals.values()) == snapshot.checkpoints
    assert bool(snapshot.out_of_section_since_ns) == (sections > 0 and not snapshot.open_sections)
    for section in snapshot.open_sections:
        assert section.name == "checkpointing"
        assert section.since_ns == snapshot.last_activity_ns > snapshot.last_heartbeat_ns
    limits = snapshot.limits
    assert (
        limits.initial == limits.subsequent == limits.out_of_section == limits.sections.get("checkpointing")
    )


@pytest.fixture
def writing(board: Board, spawn: Spawner) -> Spawned:
    """A process that writes to the board as fast as it can."""
    process = spawn.python(_WRITER, board.path)
    process.wait_for("writing")
    return process


def _check_events(events: list[BoardEvent]) -> None:
    times = [event.at_ns for event in events]
    assert times == sorted(times)
    story = [event for event in events if event.kind != "connect"]
    for before, after in pairwise(story):
        assert {"step": "start", "start": "end", "end": "step"}[before.kind] == after.kind
        assert (after.kind == "step") == (after.name == "")


def test_every_reading_is_of_one_moment_and_no_event_is_torn(board: Board, writing: Spawned) -> None:
    reader = BoardReader(board.path)
    moments: set[int | None] = set()
    steps: set[int] = set()
    last = -1

    def enough() -> bool:
        nonlocal last
        for _ in range(500):
            snapshot = reader.snapshot()
            if snapshot.consistent:
                _check(snapshot)
                assert snapshot.heartbeat_count >= last, "time went back"
                last = snapshot.heartbeat_count
                moments.add(snapshot.step)
        for _ in range(5):
            events = reader.events()
            _check_events(events)
            steps.update(event.value for event in events if event.kind == "step")
        # Distinct: on a busy machine the two processes rarely run at the same time.
        return len(moments) > 1000 and len(steps) > 10_000

    wait_until(enough, what="readings of many different moments of a board that is written without a pause")
    reader.close()


def _raw_sequence(path: str) -> int:
    with open(path, "rb") as file:
        file.seek(layout.IDENTITY_BYTES + layout.SEQUENCE * layout.WORD)
        return int.from_bytes(file.read(layout.WORD), "little")


def _stop_in_mid_write(writing: Spawned, path: str) -> None:
    def stopped_with_an_odd_sequence() -> bool:
        writing.send_signal(signal.SIGSTOP)
        wait_until(lambda: "(stopped)" in Path(f"/proc/{writing.pid}/status").read_text(), what="SIGSTOP")
        if _raw_sequence(path) & 1:
            return True
        writing.send_signal(signal.SIGCONT)
        return False

    wait_until(stopped_with_an_odd_sequence, what="a writer stopped in the middle of a write")


def _readable(read: Callable[[], Snapshot]) -> Snapshot:
    snapshot = read()
    assert not snapshot.consistent
    assert snapshot.connected and snapshot.heartbeat_count > 0
    return snapshot


def test_a_writer_stopped_in_mid_write_neither_blocks_nor_blinds(board: Board, writing: Spawned) -> None:
    _stop_in_mid_write(writing, board.path)
    frozen = _readable(board.snapshot)
    assert _readable(board.snapshot) == frozen
    assert board.events()
    writing.send_signal(signal.SIGCONT)
    thawed = wait_until(lambda: (s := board.snapshot()).consistent and s, what="a consistent reading again")
    _check(thawed)
    wait_until(lambda: board.snapshot().heartbeat_count > frozen.heartbeat_count, what="the writer continues")


def test_a_writer_killed_in_mid_write_leaves_a_readable_board(board: Board, writing: Spawned) -> None:
    wait_until(lambda: len(board.events()) == layout.RING_EVENTS - 1, what="a full ring of events")
    _stop_in_mid_write(writing, board.path)
    writing.stop(signal.SIGKILL)
    last = _readable(board.snapshot)
    events = board.events()
    assert len(events) == layout.RING_EVENTS - 1
    # The next writer of this board makes it whole again, and is not taken for its predecessor.
    successor = BoardWriter(board.path)
    successor.connect()
    new = board.snapshot()
    assert new.consistent and (new.heartbeat_count, new.section_count, new.open_sections) == (0, 0, ())
    assert new.connected_ns == new.last_activity_ns > last.last_activity_ns and new.step is None
    assert [event.kind for event in board.events()] == ["connect"]
    successor.detach()
