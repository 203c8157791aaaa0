"""The monitor as a process: what it withstands, what it sees of others, which process it signals, its start and end."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.board import Board, BoardWriter, Limits, writer
from holdfast.fault_tolerance.launcher.monitor_keeper import MAIN
from holdfast.fault_tolerance.monitor import main as starting
from holdfast.fault_tolerance.monitor.control import ControlPage, Settings
from holdfast.fault_tolerance.monitor.main import clean_up, command, start
from holdfast.fault_tolerance.monitor.watch import Terminator, Watch
from holdfast.fault_tolerance.processes import kill, proc
from tests.boards import SECOND
from tests.monitor.node import Node, few_descriptors, identity, state, stubborn, victim
from tests.monitor.test_hangs import heartbeats
from tests.processes import Spawned, Spawner, alive, wait_until

LIMIT = 0.5
MEANT_FOR_THE_TRAINING = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"]


def test_signals_that_are_meant_for_the_training_do_nothing_to_it(node: Node) -> None:
    (rank,) = node.start(Limits(subsequent=LIMIT))
    node.looks(1)
    monitor = node.keeper.pid
    for name in MEANT_FOR_THE_TRAINING:
        os.kill(monitor, getattr(signal, name))
    heartbeats(rank.hand)
    assert node.hear("verdict")["reason"] == "heartbeat"
    assert (node.keeper.pid, node.replaced) == (monitor, [])
    maps = Path(f"/proc/{monitor}/maps").read_text()
    assert ".so" in maps and "torch" not in maps and "numpy" not in maps


@pytest.mark.parametrize("change", [{"start_time": 1}, {"cycle": 7}], ids=str)
def test_recycled_pid_is_left_alone(node: Node, spawn: Spawner, change: dict[str, int]) -> None:
    """The identity's pid belongs to another process by now. It is neither reported nor signalled."""
    ranks = node.start(Limits(sections={"step": LIMIT}), victim(spawn), victim(spawn))
    recycled, hung = ranks
    meant = identity(recycled.process, rank=0, started_ns=time.monotonic_ns())
    recycled.board.bind_process(replace(meant, **change))
    for rank in ranks:
        rank.hand.connect()
        rank.hand.start_section("step")
    assert node.hear("verdict")["rank"] == 1
    assert hung.process.wait() == -signal.SIGKILL
    node.looks(3)
    assert len(node.heard("verdict")) == 1
    assert recycled.lives


def test_a_rank_that_has_ended_and_waits_to_be_reaped_is_no_hang(node: Node, spawn: Spawner) -> None:
    """Its launcher may be stopped, and reaps it later: it did not hang, it ended."""
    process = spawn(["true"])
    wait_until(lambda: state(process) == "Z")
    ended, hung = node.start(Limits(subsequent=LIMIT), process, victim(spawn))
    heartbeats(ended.hand)
    heartbeats(hung.hand)
    assert node.hear("verdict")["rank"] == 1
    node.looks(3)
    assert len(node.heard("verdict")) == 1
    assert hung.process.wait() == -signal.SIGKILL


def test_it_imports_little(spawn: Spawner) -> None:
    """The very command that the launcher starts, up to the call of main. No heavy module: tests/house."""
    words = command(MAIN, "{}")
    words[-2] = words[-2].removesuffix("main()") + "print(*sys.modules)"
    process = spawn(words)
    assert process.wait() == 0
    modules = set(process.out().split())
    assert "holdfast.fault_tolerance.monitor.main" in modules
    assert modules & {"torch", "numpy", "logging.config", "asyncio", "multiprocessing"} == set()
    assert len(modules) < 150, "it starts in a few hundredths of a second and must stay so"


def test_a_thousand_scans_cost_no_memory(node: Node, spawn: Spawner) -> None:
    ranks = node.start(Limits(subsequent=60.0, sections={"step": 60.0}), victim(spawn), victim(spawn))
    for rank in ranks:
        heartbeats(rank.hand)

    def look(count: int) -> None:
        goal = node.control.tick + count
        while node.control.tick < goal:
            for rank in ranks:
                rank.hand.heartbeat(node.control.tick)
                rank.hand.start_section("step")
                rank.hand.end_section("step")
            node.keeper.scan()
            node.pump(0)

    def growth(scans: int) -> int:
        before = _resident(node.keeper.pid)
        look(scans)
        return _resident(node.keeper.pid) - before

    look(500)
    # What leaks does so in every round; what an allocator takes once, in one.
    assert min(growth(1000) for _ in range(3)) <= 64 * 1024
    assert node.replaced == []


def _resident(pid: int) -> int:
    """Bytes of private memory; pages shared with others say nothing about this process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


# -- one scan, in this process -------------------------------------------------------------------------------

PASSED = 0.1


@pytest.fixture
def ranks(folder: str, spawn: Spawner) -> Iterator[list[Spawned]]:
    """Two ranks; both have sent heartbeats and the limit of both has passed, that of rank 0 first."""
    processes = [victim(spawn), victim(spawn)]
    boards = []
    for rank, process in enumerate(processes):
        board = Board.create(os.path.join(folder, "cycle-0", f"{rank}.board"), Limits(subsequent=PASSED))
        board.bind_process(identity(process, rank=rank, started_ns=time.monotonic_ns()))
        hand = BoardWriter(board.path)
        heartbeats(hand)
        hand.detach()
        boards.append(board)
    time.sleep(PASSED)
    yield processes
    for board in boards:
        board.close()


class Watched(Watch):
    """A monitor's watch in this process, and what it says."""

    def __init__(self, folder: str) -> None:
        self.said: list[dict[str, Any]] = []
        super().__init__(Settings(folder, 1.0, signal.SIGKILL, 1.0), self.said.append)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [message for message in self.said if message["event"] == event]

    def judge(self, rank: int) -> dict[str, Any]:
        """Scan until there is a verdict on this rank."""

        def judged() -> dict[str, Any] | None:
            self.scan()
            return next((each for each in self.of("verdict") if each["rank"] == rank), None)

        return wait_until(judged, what=f"the verdict on rank {rank}")


def test_a_suspension_is_given_back_once_by_every_monitor_after_it(
    folder: str, spawn: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its predecessor's last scan on the page shows the first one that the node was suspended; then it dies."""
    process, now = victim(spawn), time.monotonic_ns()
    board = Board.create(os.path.join(folder, "cycle-0", "0.board"), Limits(subsequent=6.0))
    board.bind_process(identity(process, started_ns=now - 200 * SECOND))
    past = itertools.count(now - 104 * SECOND)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "monotonic_ns", lambda: next(past))
        hand = BoardWriter(board.path)
        heartbeats(hand)
    page = ControlPage(folder)
    page.record_scan(now - 100 * SECOND, now - 99 * SECOND)
    page.close()
    with Watched(folder) as watch:
        watch.scan()
        (gap,) = watch.of("gap")
    assert 100 <= gap["seconds"] < 150 and process.returncode is None
    with Watched(folder) as watch:
        verdict = watch.judge(0)
    assert 105.9 < verdict["waited"] < 6.0 + 2 * 100, "the limit and the suspension, once"
    assert process.wait() == -signal.SIGKILL
    hand.detach()
    board.close()


def test_boards_that_cannot_be_listed_once_are_watched_later(folder: str, ranks: list[Spawned]) -> None:
    with Watched(folder) as watch:
        with few_descriptors(3):
            watch.scan()
        watch.judge(0)
        assert ["not watched" in each["text"] for each in watch.of("unreadable")] == [True]
    assert ranks[0].wait() == -signal.SIGKILL


def test_board_that_cannot_be_opened_once_is_watched_later(folder: str, ranks: list[Spawned]) -> None:
    """The others are watched meanwhile; it is reported once."""
    board, hidden = Path(folder, "cycle-0", "0.board"), Path(folder, "hidden")
    board.rename(hidden)
    board.write_bytes(hidden.read_bytes()[:4096])
    with Watched(folder) as watch:
        watch.judge(1)
        hidden.replace(board)
        assert ranks[1].wait() == -signal.SIGKILL
        watch.judge(0)
        assert [str(board) in each["text"] for each in watch.of("unreadable")] == [True]
    assert ranks[0].wait() == -signal.SIGKILL


def test_an_error_about_one_rank_leaves_the_others_supervised(
    folder: str, ranks: list[Spawned], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = proc.is_running

    def is_running(pid: int, start_time: int) -> bool:
        if pid == ranks[0].pid:
            raise ValueError("no such field")
        return real(pid, start_time)

    monkeypatch.setattr(proc, "is_running", is_running)
    with Watched(folder) as watch:
        watch.judge(1)
        assert len(watch.of("verdict")) == 1
        (message,) = watch.of("unreadable")
    assert "local rank 0 is no longer watched" in message["text"]
    assert ranks[1].wait() == -signal.SIGKILL and ranks[0].returncode is None


# -- processes as the kernel shows them; signals reach the process meant or none

NOBODY = 2**22 + 1  # beyond the largest pid that Linux gives


def stat(pid: int, ppid: int) -> proc.Stat:
    return proc.Stat(pid, "S", ppid, 1, 0, pid, 0)


def test_a_process_with_a_name_that_looks_like_its_state_is_read_rightly(
    spawn: Spawner, tmp_path: Path
) -> None:
    program = tmp_path / "a) Z 1 ("
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, program)
    process = spawn([program, "999"])
    wait_until(lambda: b"a) Z 1 (" in Path(f"/proc/{process.pid}/stat").read_bytes())
    found = proc.stat(process.pid)
    assert found is not None
    assert (found.pid, found.ppid, found.session) == (process.pid, os.getpid(), process.pid)
    assert found.state in "SRD"


def test_nobody_is_told_as_nobody() -> None:
    assert proc.stat(NOBODY) is None
    assert proc.start_time(NOBODY) is None
    assert proc.wait_channel(NOBODY) == ""
    assert not proc.has_environment(NOBODY, b"")
    assert not proc.is_running(NOBODY, 1)


@pytest.mark.parametrize(
    ("roots", "expected"),
    [({1}, {2, 3, 4, 5}), ({2}, {3, 4}), ({5}, set()), ({2, 3}, {4}), ({NOBODY}, set())],
)
def test_descendants(roots: set[int], expected: set[int]) -> None:
    tree = {pid: stat(pid, ppid) for pid, ppid in [(2, 1), (3, 2), (4, 3), (5, 1)]}
    assert proc.descendants(roots, tree) == expected


def test_a_signal_for_a_process_that_is_gone_reaches_nobody(spawn: Spawner) -> None:
    process = victim(spawn)
    who = identity(process)
    with kill.verified(who.pid, who.start_time) as handle:
        assert handle is not None
        process.kill()
        assert not kill.send(handle, signal.SIGTERM)
    assert not kill.send_verified(who.pid, who.start_time, signal.SIGTERM)


def test_who_does_not_go_within_the_limit_is_named() -> None:
    asked, left = kill.end_all(lambda: {NOBODY: 1}, grace=0.0, limit=0.05)
    assert asked == left == {NOBODY}


def test_the_environment_marks_who_belongs_to_a_job(spawn: Spawner) -> None:
    ours, other = spawn(["sleep", "999"], env={"HOLDFAST_PROBE": "/dev/shm/probe-1/x"}), victim(spawn)
    found = kill.marked(b"/dev/shm/probe-1/", set())
    assert found == {ours.pid: identity(ours).start_time}
    assert kill.marked(b"/dev/shm/probe-1/", {ours.pid}) == {}
    assert other.returncode is None


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"])
def test_a_batch_job_that_a_rank_submitted_does_not_belong_to_its_job(
    spawn: Spawner, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """sbatch and its like give a job the environment of the process that submits it, and a job id of its own."""
    monkeypatch.setenv(name, "71")
    mark = {"HOLDFAST_PROBE": "/dev/shm/probe-1/x"}
    for job, is_found in ((None, True), ("71", True), ("72", False)):
        started = spawn(["sleep", "999"], env=mark | ({name: job} if job else {}))
        assert (started.pid in kill.marked(b"/dev/shm/probe-1/", set())) is is_found
    monkeypatch.delenv(name)
    assert started.pid not in kill.marked(b"/dev/shm/probe-1/", set())


def test_a_session_outlives_its_leader_and_is_not_taken_for_anothers(spawn: Spawner) -> None:
    leader = spawn.python(
        "import subprocess; print(subprocess.Popen(['sleep', '999']).pid, flush=True); input()"
    )
    match = leader.wait_for(r"^(\d+)$")
    assert isinstance(match, re.Match)
    child = int(match.group(1))
    started = proc.start_time(leader.pid) or 0
    leader.wait()
    assert kill.in_sessions({leader.pid: started}, set()) == {child: proc.start_time(child)}
    assert kill.in_sessions({leader.pid: started}, {child}) == {}
    os.kill(child, signal.SIGKILL)
    recycled = victim(spawn)
    assert kill.in_sessions({recycled.pid: identity(recycled).start_time - 1}, set()) == {}


# -- ending a hung rank: the configured signal, SIGKILL when that was not enough -----------------------------


NOW = 1000 * SECOND


def test_another_signal_comes_first_and_sigkill_after_the_patience(spawn: Spawner) -> None:
    rank = stubborn(spawn)
    who = identity(rank)
    terminator = Terminator(signal.SIGTERM, grace=5.0)
    assert terminator.terminate(who, NOW) == "SIGTERM"
    assert terminator.next_ns == NOW + 5 * SECOND
    terminator.extend(100 * SECOND)  # the node was suspended
    assert terminator.next_ns == NOW + 105 * SECOND
    assert terminator.kill_expired(NOW + 105 * SECOND - 1) == []
    assert rank.returncode is None
    assert terminator.kill_expired(NOW + 105 * SECOND) == [who]
    assert rank.wait() == -signal.SIGKILL
    assert terminator.next_ns is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_rank_gets_it_too(spawn: Spawner, number: signal.Signals) -> None:
    rank = victim(spawn)
    rank.send_signal(signal.SIGSTOP)
    wait_until(lambda: state(rank) == "T")
    assert Terminator(number, grace=5.0).terminate(identity(rank), NOW) == number.name
    assert rank.wait() == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_with_the_pid_and_another_start_time_is_nobody(
    spawn: Spawner, number: signal.Signals
) -> None:
    other = victim(spawn)
    other.send_signal(signal.SIGSTOP)
    wait_until(lambda: state(other) == "T")
    meant = replace(identity(other), start_time=identity(other).start_time - 1)
    terminator = Terminator(number, grace=0.0)
    assert terminator.terminate(meant, NOW) is None
    assert terminator.kill_expired(NOW + SECOND) == []
    assert state(other) == "T", "not even SIGCONT may reach it"


# -- starting a monitor: neither the user's environment nor what else is installed reaches it ----------------


PROBE = """
import dataclasses, json, os, sys

def main():
    channel = json.loads(sys.argv[-1])["channel"]
    found = {"env": dict(os.environ), "dataclasses": dataclasses.__file__, "session": os.getsid(0) == os.getpid()}
    os.write(channel, json.dumps(found).encode())
"""

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
sys.stdin.readline()
from holdfast.fault_tolerance.monitor import main
main.ignore_signals()
import signal
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), flush=True)
sys.stdin.readline()
"""


@dataclass
class Given:
    channel: int


def test_neither_environment_nor_other_packages_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    # An old backport in site-packages must not take the place of the standard library.
    (tmp_path / "dataclasses.py").write_text("raise SystemExit('the backport was imported')")
    monkeypatch.setattr(starting, "PACKAGE_ROOT", str(tmp_path))
    for name in ("LD_PRELOAD", "MALLOC_CONF", "PYTHONMALLOC", "FT_RANK_MONITOR_IPC_SOCKET", "MASTER_ADDR"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setenv("HOLDFAST_MINE", "1")
    mine, theirs = os.pipe()
    process = starting.start("probe", Given(theirs), theirs)
    os.close(theirs)
    with open(mine, encoding="utf-8") as pipe:
        found = json.load(pipe)
    assert process.wait(60) == 0
    env = found["env"]
    assert env["LD_LIBRARY_PATH"] == "/nowhere"
    assert env["HOLDFAST_MINE"] == "1"
    assert {name for name in env if not name.startswith("HOLDFAST_")} <= set(starting.KEPT)
    assert found["session"] is True
    assert found["dataclasses"] != str(tmp_path / "dataclasses.py")


def test_signals_that_come_before_the_first_line_are_dropped() -> None:
    command = [sys.executable, "-I", "-S", "-c", CODE, starting.PACKAGE_ROOT]
    with starting.spawn_shielded():
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin and child.stdout
        for number in starting.SHIELDED:
            child.send_signal(number)
        child.stdin.write("continue\n")
        child.stdin.flush()
        assert child.stdout.readline() == "[]\n", "nothing stays blocked for what a monitor starts"
        for number in starting.SHIELDED:
            child.send_signal(number)
    assert child.returncode == 0


def test_the_starter_gets_its_signals_afterwards() -> None:
    got = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        with starting.spawn_shielded():
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            assert not got
        assert got == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


# -- the launcher is gone: in which order its monitor ends what is left, and which monitor does --------------


def _admit(folder: str, local_rank: int, process: Spawned) -> None:
    board = Board.create(os.path.join(folder, "cycle-0", f"{local_rank}.board"), Limits())
    board.bind_process(identity(process, rank=local_rank, started_ns=time.monotonic_ns()))
    board.close()


def test_no_environment_is_read_before_the_ranks_have_ended(
    folder: str, spawn: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read can block forever; then at least the ranks and the directory are gone."""
    ranks = [victim(spawn), stubborn(spawn), victim(spawn)]
    ranks[2].send_signal(signal.SIGSTOP)
    for local_rank, process in enumerate(ranks):
        _admit(folder, local_rank, process)
    seen: list[tuple[bool, bool]] = []

    def has_environment(pid: int, marker: bytes) -> bool:
        seen.append((any(alive(rank.pid) for rank in ranks), os.path.exists(folder)))
        return False

    monkeypatch.setattr(proc, "has_environment", has_environment)
    clean_up(Watched(folder), folder)
    assert [rank.wait() for rank in ranks] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM]
    assert set(seen) == {(False, False)}


def test_a_rank_that_was_just_being_started_is_found(folder: str, spawn: Spawner) -> None:
    """It gets the environment by which it is known after the first look."""
    late = f"while [ -e {folder} ]; do sleep 0.02; done; sleep 0.2; exec env BOARD={folder}/0 sleep 600"
    rank = spawn(["sh", "-c", late])
    clean_up(Watched(folder), folder)
    assert rank.wait() == -signal.SIGTERM


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_the_environment_of_another_users_process_is_not_read() -> None:
    for user, ours in ((None, True), (65534, False)):
        process = subprocess.Popen(["sleep", "600"], env={"MARK": "a mark of this test"}, user=user)
        try:
            wait_until(lambda pid=process.pid: b"MARK" in Path(f"/proc/{pid}/environ").read_bytes())  # type: ignore[misc]
            assert proc.has_environment(process.pid, b"a mark of this test") is ours
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("superseded", [True, False])
def test_only_the_monitor_in_charge_cleans_up(folder: str, spawn: Spawner, superseded: bool) -> None:
    """It sleeps when it is superseded and its launcher ends, so it learns of both at once."""
    launcher, rank = victim(spawn), victim(spawn)
    _admit(folder, 0, rank)
    control = ControlPage(folder)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    who = identity(launcher)
    of_it = {"launcher_pid": who.pid, "launcher_start": who.start_time, "channel": theirs.fileno()}
    settings = Settings(folder, 5.0, signal.SIGKILL, 1.0, **of_it)
    with ours, theirs:
        monitor = start(MAIN, settings, theirs.fileno())
        wait_until(lambda: control.tick > 0, what="the first look")
        monitor.send_signal(signal.SIGSTOP)
        wait_until(lambda: state(monitor) == "T", what="a monitor that is stopped")
        if superseded:
            control.epoch += 1
        launcher.stop(signal.SIGKILL)
        monitor.send_signal(signal.SIGCONT)
        assert monitor.wait(60) == 0
    control.close()
    assert os.path.exists(folder) is superseded
    assert (rank.returncode is None) is superseded
