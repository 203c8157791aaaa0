"""Who may write a board: all threads of one process, signal handlers among them, and no other process.

A reader sees one moment, whatever becomes of the writer.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import (
    Board,
    BoardError,
    BoardEvent,
    BoardReader,
    BoardWriter,
    Limits,
    Snapshot,
    layout,
)
from holdfast.fault_tolerance.board.mapped import MappedFile
from holdfast.fault_tolerance.launcher.ranks.prologue import main_end
from tests.boards import identity
from tests.processes import Spawned, Spawner, wait_until

_HOLD = """
import sys, time
from holdfast.fault_tolerance.board import BoardWriter
writer = BoardWriter(sys.argv[1])
writer.connect()
print("holding", flush=True)
time.sleep(600)
"""


def test_of_many_threads_that_open_one_section_exactly_one_does(writer: BoardWriter) -> None:
    together = threading.Barrier(4)

    def open_all(_: int) -> list[bool]:
        together.wait()
        return [writer.start_section(f"section {number}") for number in range(50)]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(open_all, range(4)))
    assert [sum(column) for column in zip(*results, strict=True)] == [1] * 50


def test_a_signal_handler_may_write_in_the_middle_of_a_write(board: Board, writer: BoardWriter) -> None:
    handled = 0

    def handler(*_: object) -> None:
        nonlocal handled
        handled += 1
        writer.heartbeat()
        writer.start_section("saving")
        writer.end_all_sections()

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    beats = 0
    try:
        while handled < 200:
            beats += 1
            writer.heartbeat()
            writer.start_section("step")
            writer.end_section("step")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    snapshot = board.snapshot()
    assert snapshot.consistent and snapshot.open_sections == () and writer.opened_ns == {}
    assert snapshot.heartbeat_count == beats + handled


def test_new_section_in_a_heartbeat_logs_without_the_lock() -> None:
    """A signal handler in a heartbeat opens a new section, and the log line of that waits for a full pipe."""
    logging, read = threading.Event(), threading.Event()

    def log(_: str) -> None:
        logging.set()
        read.wait(300)

    writer = BoardWriter(None, on_new_section=log)
    writer._observe_heartbeat = lambda *_: writer.start_section("saving")  # type: ignore[assignment,return-value]
    writer.heartbeat()
    assert logging.wait(60) and list(writer.opened_ns) == ["saving"]
    other = threading.Thread(target=writer.heartbeat, daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive()
    read.set()


def test_letting_go_of_the_board_disturbs_no_other_thread(board: Board) -> None:
    writer = BoardWriter(board.path)

    def work(number: int) -> int:
        """Until it has continued for a while without the board; the number of heartbeats."""
        count = without = 0
        while without < 5000:
            without += not writer.attached
            writer.heartbeat(count := count + 1)
            writer.start_section(f"thread {number}")
            writer.end_section(f"thread {number}")
        assert writer.limits.initial is None
        return count

    with ThreadPoolExecutor(2) as pool:
        counts = [pool.submit(work, number) for number in range(2)]
        while not board.snapshot().heartbeat_count:
            pass
        writer.detach()
        beats = sum(count.result() for count in counts)
    assert 0 < board.snapshot().heartbeat_count < beats and board.snapshot().consistent


def test_a_signal_handler_may_let_go_of_the_board(board: Board) -> None:
    for delay in range(1, 200, 7):
        writer = BoardWriter(board.path)
        before = signal.signal(signal.SIGALRM, lambda *_, writer=writer: writer.detach())
        signal.setitimer(signal.ITIMER_REAL, delay / 1e5)
        try:
            while writer.attached:
                writer.heartbeat()
                writer.start_section("step")
                writer.end_section("step")
        finally:
            signal.signal(signal.SIGALRM, before)
        assert board.snapshot().consistent


def test_a_fork_while_another_thread_writes_leaves_the_child_free(board: Board, writer: BoardWriter) -> None:
    """The lock may be held at the moment of the fork by a thread that the child does not have."""
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            writer.heartbeat()

    thread = threading.Thread(target=write)
    thread.start()
    codes = []
    for _ in range(20):
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a deadlocked child ends by this, and the test fails
            writer.heartbeat()
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    done.set()
    thread.join()
    assert codes == [0] * 20


def lock_owner(board: Board) -> int | None:
    with MappedFile(board.path) as file:
        return file.lock_owner()


def test_another_process_cannot_take_the_board(board: Board, spawn: Spawner) -> None:
    assert lock_owner(board) is None
    rank = spawn.python(_HOLD, board.path)
    rank.wait_for("holding")
    assert lock_owner(board) == rank.pid
    with pytest.raises(BoardError, match=f"process {rank.pid} already writes this board"):
        BoardWriter(board.path)
    assert board.snapshot().connected
    rank.stop(signal.SIGKILL)
    assert lock_owner(board) is None
    BoardWriter(board.path).detach()


_THEN = """
import os, sys
from holdfast.fault_tolerance.board import BoardError, BoardWriter
try:
    writer = BoardWriter(sys.argv[1])
    writer.connect()
    writer.heartbeat()
    print("taken")
except BoardError as error:
    print(error)
"""


def _then(board: Board, spawn: Spawner) -> str:
    """The answer to another process that wants to write this board now."""
    process = spawn.python(_THEN, board.path)
    assert process.wait() == 0, process.output()
    return process.out().strip()


@pytest.mark.parametrize("admitted", [True, False])
def test_a_rank_that_has_finished_is_not_blamed_for_its_child(
    board: Board, spawn: Spawner, admitted: bool
) -> None:
    """It starts an evaluation that uses the client and ends without a shutdown."""
    if admitted:
        board.bind_process(identity())
    rank = BoardWriter(board.path)
    rank.connect()
    rank.finish()
    rank.detach()
    before = board.snapshot()
    assert f"this is the board of process {os.getpid()}, which still runs" in _then(board, spawn)
    assert board.snapshot() == before and before.finished
    again = BoardWriter(board.path)  # the rank itself may come back
    again.connect()
    assert not board.snapshot().finished
    again.detach()


def test_the_first_to_write_need_not_be_the_one_that_was_admitted(board: Board, spawn: Spawner) -> None:
    """The rank is a shell script, say, that starts one program after another; then it writes itself."""
    board.bind_process(identity())
    assert _then(board, spawn) == "taken"
    assert _then(board, spawn) == "taken"
    assert board.snapshot().heartbeat_count == 1
    rank = BoardWriter(board.path)
    rank.detach()
    assert "which still runs" in _then(board, spawn)


@pytest.mark.parametrize("is_bound_first", [False, True])
@pytest.mark.parametrize("is_child", [False, True])
def test_end_of_a_main_thread_counts_only_for_the_rank(
    board: Board, *, is_bound_first: bool, is_child: bool
) -> None:
    """A Python below a shell script may have ended before the launcher has bound the board to the shell."""
    steps = [
        lambda: main_end.MainEnd(board.path, lambda: None).mark(),
        lambda: board.bind_process(identity(os.getppid() if is_child else os.getpid())),
    ]
    for step in reversed(steps) if is_bound_first else steps:
        step()
    assert bool(board.snapshot().main_ended_ns) is not is_child


@pytest.mark.parametrize("is_recycled", [False, True])
def test_a_board_of_a_child_is_taken_when_admitted_or_when_its_pid_is_recycled(
    board: Board, spawn: Spawner, *, is_recycled: bool
) -> None:
    child = spawn.python(_HOLD.replace('print("hold', 'writer.detach()\nprint("hold'), board.path)
    child.wait_for("holding")
    with pytest.raises(BoardError, match=f"the board of process {child.pid}, which still runs"):
        BoardWriter(board.path)
    if is_recycled:
        with open(board.path, "r+b") as file:
            file.seek(layout.IDENTITY_BYTES + layout.OWNER_START * layout.WORD)
            file.write((1).to_bytes(layout.WORD, sys.byteorder))
    else:
        board.bind_process(identity())
    BoardWriter(board.path).detach()


def test_on_a_servers_board_one_process_follows_another(shm: Path, spawn: Spawner) -> None:
    board = Board.create(str(shm / "0.board"), Limits(), successive=True)
    first = BoardWriter(board.path)
    first.connect()
    first.finish()
    first.detach()
    assert _then(board, spawn) == "taken"
    board.close()


def test_the_page_with_the_identity_is_read_only_in_the_rank(board: Board, spawn: Spawner) -> None:
    """Python refuses the store; a stray pointer of native code dies of it instead of changing who gets killed."""
    rank = spawn.python(
        "import ctypes, re, sys\n"
        "from holdfast.fault_tolerance.board import BoardWriter\n"
        "writer = BoardWriter(sys.argv[1])\n"
        "lines = [l for l in open('/proc/self/maps') if sys.argv[1] in l]\n"
        "print([re.split(' +', l)[1] for l in sorted(lines, key=lambda l: l.split()[2])], flush=True)\n"
        "first = next(l for l in lines if l.split()[2] == '00000000')\n"
        "ctypes.memset(int(first.split('-')[0], 16), 1, 8)",
        board.path,
    )
    assert rank.wait() == -signal.SIGSEGV
    assert rank.out().strip() == "['r--s', 'rw-s']"
    assert board.snapshot().identity is None


# -- a reader against a writer that never pauses, is stopped, or is killed in the middle of a write

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
