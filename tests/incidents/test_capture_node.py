"""Evidence of a node's ranks: complete where it can be had, in time whatever state they are in."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.board import Board, BoardReader, Identity, Limits
from holdfast.fault_tolerance.processes import proc
from holdfast.health import programs
from holdfast.incidents.capture import capture, py_spy
from holdfast.incidents.capture.capture import gather
from holdfast.incidents.capture.rank_probe import LocalRank, RankProbe
from holdfast.incidents.evidence import CRASH, Missing, NodeEvidence, RankEvidence, StackSource
from tests.monitor.job import Freezer, freezer
from tests.processes import Spawned, Spawner, wait_until

__all__ = ["freezer"]

SLEEPS = "import time; print('on', flush=True); time.sleep(600)"
IN_STATE_D = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""
MakeRank = Callable[..., LocalRank]


def sleeper(spawn: Spawner) -> Spawned:
    """A rank that sleeps."""
    rank = spawn.python(SLEEPS)
    rank.wait_for("on")
    return rank


@pytest.fixture
def local(shm: Path) -> Iterator[MakeRank]:
    """`local(process)`: a rank with a board, to which the process need not have written."""
    open_: list[Board | BoardReader] = []

    def make(process: Spawned, number: int = 0, prefix: str = "") -> LocalRank:
        path = str(shm / f"{number}.board")
        board = Board.create(path, Limits())
        started = proc.start_time(process.pid) or 1
        board.bind_process(Identity(process.pid, started, number, number, 0, time.monotonic_ns()))
        reader = BoardReader(path)
        open_.extend((board, reader))
        return LocalRank(number, number, process.pid, started, "node-a", reader, prefix)

    yield make
    for each in open_:
        each.close()


LATE = 60.0
"""Seconds that a busy machine may take for what takes no time; a look that waits for a stuck process takes 600."""


def look(*ranks: LocalRank, seconds: float = 2 * LATE, ask: bool = True, **more: Any) -> list[RankEvidence]:
    """Evidence of these; it is not waited for."""
    began = time.monotonic()
    found = gather(ranks, began + seconds, ask=ask, **more)
    assert time.monotonic() - began < LATE
    return list(found)


def one(rank: LocalRank, **more: Any) -> RankEvidence:
    """Without a question to it."""
    return look(rank, **{"ask": False, **more})[0]


def test_a_rank_that_moves_and_one_that_does_not(spawn: Spawner, local: MakeRank, shm: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from holdfast.fault_tolerance.board import BoardWriter\n"
        "board = BoardWriter(sys.argv[1])\n"
        "print('on', flush=True)\n"
        "while True: board.heartbeat(); time.sleep(0.002)"
    )
    still = sleeper(spawn)
    wait_until(lambda: (found := proc.stat(still.pid)) and found.state == "S")
    first = local(still, 0)
    path = shm / "1.board"
    Board.create(str(path), Limits()).close()
    mover = spawn.python(code, str(path))
    mover.wait_for("on")
    reader = BoardReader(str(path))
    second = LocalRank(1, 1, mover.pid, proc.start_time(mover.pid) or 1, "node-a", reader, "")
    found = look(first, second, ask=False, pause=1.0)
    reader.close()
    assert [each.rank for each in found] == [0, 1]
    assert found[0].board and not found[0].board.moved and found[0].board.age > 0
    assert found[1].board and found[1].board.moved and found[1].board.heartbeats > 0 and found[1].board.events
    assert found[1].process and found[1].process.switches > 0 and found[1].process.sampled_over >= 1.0
    assert found[0].process and found[0].process.switches == 0 and found[0].notes == ()
    assert found[0].no_stacks is found[0].no_collectives is Missing.NOT_REQUESTED


def test_a_rank_that_has_ended(spawn: Spawner, local: MakeRank) -> None:
    rank = sleeper(spawn)
    who = local(rank)
    rank.kill()
    found = one(who, ask=True)
    assert found.process and found.process.state == "gone" and found.board and found.board.age > 0
    assert found.no_stacks is Missing.ENDED


def test_a_rank_that_ends_while_it_is_looked_at(spawn: Spawner, local: MakeRank) -> None:
    rank = sleeper(spawn)
    who = local(rank)
    ends = threading.Timer(1.0, rank.kill)
    ends.start()
    found = one(who, pause=3.0)
    ends.join()
    assert found.process and found.process.state == "gone" and "ended during" in found.notes[0]


def test_ranks_below_a_shell_and_their_workers(spawn: Spawner, local: MakeRank) -> None:
    code = "import subprocess, time; subprocess.Popen(['sleep', '601']); print('on', flush=True); time.sleep(600)"
    shell = spawn(["sh", "-c", f'{programs.find("python") or "python3"} -c "{code}"; true'])
    shell.wait_for("on")
    found = one(local(shell))
    assert found.pid == shell.pid and found.process is not None
    below = found.process.threads[0].tid
    assert below != shell.pid and [each.command for each in found.process.children] == ["sleep 601"]
    (note,) = found.notes
    assert note.startswith(f"Its process {shell.pid} is ") and f"pid {below} (python" in note


def test_the_process_that_is_armed_is_the_one_that_matters(
    spawn: Spawner, local: MakeRank, shm: Path
) -> None:
    """A file of another kind in the place of that of the armed process is left out."""
    rank = spawn(["sh", "-c", "sleep 600 & echo $!; wait"])
    below = int(rank.wait_for(r"^(\d+)$").group(1))  # type: ignore[union-attr]
    who, armed = local(rank, prefix=f"{shm}/0"), shm / "0.armed"

    def meant() -> int:
        found = one(who)
        assert found.process
        return found.process.threads[0].tid

    armed.write_text(f'{{"pid": {below}, "signal": 45, "descriptor": 900, "thread": false}}')
    assert meant() == below
    for planted in ("[]", "{", '{"pid": "x"}', '{"pid": 1}'):
        armed.write_text(planted)
        assert meant() == rank.pid, planted
    armed.unlink()
    os.mkfifo(armed)
    assert meant() == rank.pid


def test_states_in_which_a_rank_answers_nobody(spawn: Spawner, local: MakeRank, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stopped = spawn.python(SLEEPS)
    closed = spawn.python("import os, time; os.closerange(0, 4096); time.sleep(600)")
    stuck = spawn.python(IN_STATE_D, str(fifo))
    stopped.wait_for("on")
    stopped.send_signal(signal.SIGSTOP)
    wait_until(lambda: not os.listdir(f"/proc/{closed.pid}/fd"))
    states = {stopped.pid: "T", stuck.pid: "D", closed.pid: "S"}
    for pid, state in states.items():
        wait_until(lambda pid=pid, state=state: (found := proc.stat(pid)) and found.state == state)
    ranks = [local(each, number) for number, each in enumerate((stopped, stuck, closed))]
    found = look(*ranks, seconds=3.0)
    assert [each.process.state for each in found if each.process] == ["T", "D", "S"]
    assert found[1].process and len(found[1].process.children) == 1


def test_a_frozen_rank(spawn: Spawner, local: MakeRank, freezer: Freezer) -> None:
    rank = sleeper(spawn)
    freezer.seize(rank.pid)
    freezer.freeze()
    found = one(local(rank), seconds=3.0, ask=True)
    assert found.process and found.process.state in "DS" and found.process.cpu == 0
    freezer.thaw()


def test_a_rank_that_becomes_another_program_again_and_again(
    spawn: Spawner, local: MakeRank, tmp_path: Path
) -> None:
    script = tmp_path / "again"
    script.write_text('#!/bin/sh\nexec "$0"\n')
    script.chmod(0o700)
    who = local(spawn([script]))
    for _ in range(20):
        found = one(who, pause=0.01)
        assert found.process and found.process.state != "gone"


def test_no_time_at_all(spawn: Spawner, local: MakeRank) -> None:
    found = one(local(sleeper(spawn)), seconds=-1, ask=True)
    assert found.process and found.process.state in ("R", "S")


WITHOUT_THREADS = """
import os, resource, sys, threading, time
from holdfast.fault_tolerance.processes import proc
from holdfast.incidents.capture.capture import gather
from holdfast.incidents.capture.rank_probe import LocalRank, RankProbe
threading.stack_size(1 << 40)  # none can have so much: each start of a thread fails, as at the limit on processes
pid = int(sys.argv[1])
began = time.monotonic()
(found,) = gather([LocalRank(0, 0, pid, 0, "n", None, "")], began + 120, ask=True)
print(found.process.state, time.monotonic() - began < 60, found.process.sampled_over > 0)
print(*found.notes)
"""


def test_where_no_thread_can_be_started(spawn: Spawner) -> None:
    rank = sleeper(spawn)
    looks = spawn.python(WITHOUT_THREADS, str(rank.pid))
    assert looks.wait() == 0, looks.output()
    first, notes = looks.out().splitlines()
    assert first == "S True True" and "no thread can be started here" in notes


def test_a_closed_board_and_none(spawn: Spawner, local: MakeRank) -> None:
    who = local(sleeper(spawn))
    assert who.board
    who.board.close()
    assert one(who).board is None


def test_stacks_by_py_spy_where_the_rank_tells_none(spawn: Spawner, local: MakeRank) -> None:
    rank = spawn.python("import time\ndef fit():\n    print('on', flush=True)\n    time.sleep(600)\nfit()")
    rank.wait_for("on")
    _, why_not = py_spy.stacks(rank.pid, time.monotonic() + LATE)
    if why_not:
        pytest.skip(why_not)
    found = one(local(rank), ask=True)
    assert found.stacks_from is StackSource.PY_SPY and not found.no_stacks
    assert [frame.function for frame in found.stacks[0].frames] == ["fit", "<module>"]
    assert found.stacks[0].main and found.stacks[0].holds_gil is not None


def test_a_py_spy_that_hangs_is_ended_in_time(
    spawn: Spawner, local: MakeRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec sleep 600\n")
    fake.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ranks = [local(spawn.python(SLEEPS), number) for number in range(4)]
    found = look(*ranks, seconds=4.0)
    assert all(each.no_stacks and each.process for each in found)
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) <= 2
    wait_until(lambda: not any(proc.stat(int(pid)) for pid in pids))


def test_a_program_that_is_not_there_or_fails() -> None:
    until = time.monotonic() + LATE
    assert "cannot be started" in programs.output(["/nonexistent/py-spy"], until)[1]
    assert programs.output(["sh", "-c", "echo why >&2; exit 3"], until) == ("", "why")
    assert programs.output(["sh", "-c", "exit 3"], until) == ("", "sh ended with 3")
    assert "not done in time" in programs.output(["sleep", "600"], time.monotonic() + 0.1)[1]
    assert programs.find("no-such-program") == ""


def test_a_look_that_is_stuck_is_not_waited_for_and_not_repeated(spawn: Spawner, local: MakeRank) -> None:
    rank = sleeper(spawn)
    who, released = local(rank), threading.Event()
    stuck = capture._thread(RankProbe(who), lambda: bool(released.wait()) and None, rank.pid)
    assert stuck
    try:
        found = one(who)
        assert found.process and found.process.state in ("R", "S")
        assert "still blocked" in " ".join(found.notes)
    finally:
        released.set()
        stuck.join()
    assert one(who).notes == () and rank.pid not in capture._stuck


def test_a_script_that_gave_the_process_its_name_is_still_python(
    spawn: Spawner, local: MakeRank, tmp_path: Path
) -> None:
    script = tmp_path / "train"
    code = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]])\n"
    script.write_text(f"#!{sys.executable}\n{code}{SLEEPS}\n")
    script.chmod(0o700)
    rank = spawn([script, SLEEPS])
    wait_until(lambda: rank.out().count("on") == 2)
    found = one(local(rank))
    assert found.process and found.process.threads[0].tid == rank.pid and found.notes == ()
    assert found.process.threads[0].name == "train"


CROWDED = """
import os, threading, time
for _ in range(150):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
for _ in range(16):
    os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
print("on", flush=True)
time.sleep(600)
"""


def test_crowded_ranks_have_their_state_in_20_ms(spawn: Spawner, local: MakeRank) -> None:
    """Four ranks with 150 threads and 16 children: what was not reached is missing, the accused rank comes first."""
    processes = [spawn.python(CROWDED) for _ in range(4)]
    for each in processes:
        each.wait_for("on")
    ranks = [local(each, number) for number, each in enumerate(processes)]
    found = look(*ranks, seconds=0.02, ask=False, pause=0, first=2)
    assert [each.rank for each in found] == list(range(4))
    assert all(each.board and each.process and each.process.state == "S" for each in found)
    threads = [len(each.process.threads) for each in found if each.process]
    assert min(threads) > 0 and threads[2] == max(threads)
    whole = one(ranks[0]).process
    assert whole and len(whole.threads) == 64 and len(whole.children) == 16
    assert all(each.command == "sleep 600" for each in whole.children)


RANK = RankEvidence(0, 0, 7, "node-a", last_lines=("login with hunter22hunter22",))
CAPTURED = NodeEvidence("node-a", CRASH, ranks=(RANK,))


def test_a_spill_is_private_and_read_once(tmp_path: Path) -> None:
    path = capture.spill(CAPTURED, str(tmp_path))
    assert Path(path).parent == tmp_path and Path(path).stat().st_mode & 0o777 == 0o600
    assert capture.load_spill(path) == CAPTURED
    assert not list(tmp_path.iterdir())


def test_a_spill_outside_the_private_folder_has_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays there if the launcher dies."""
    monkeypatch.setenv("MY_TOKEN", "hunter22hunter22")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = Path(capture.spill(CAPTURED, "/nonexistent"))
    assert path.parent == tmp_path and "hunter22" not in path.read_text()
    assert capture.load_spill(str(path)).ranks[0].rank == 0
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    assert capture.spill(CAPTURED, "/nonexistent") == ""
