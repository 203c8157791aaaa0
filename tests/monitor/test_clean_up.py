"""The launcher is gone: in which order its monitor ends what is left, and which monitor does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Board, Limits
from holdfast.fault_tolerance.launcher.monitor_keeper import MAIN
from holdfast.fault_tolerance.monitor.control import ControlPage, Settings
from holdfast.fault_tolerance.monitor.main import clean_up, start
from holdfast.fault_tolerance.monitor.watch import Watch
from holdfast.fault_tolerance.processes import proc
from tests.processes import Spawned, Spawner, alive, wait_until

from .node import identity, state, stubborn, victim


def _admit(folder: str, local_rank: int, process: Spawned) -> None:
    board = Board.create(os.path.join(folder, "cycle-0", f"{local_rank}.board"), Limits())
    board.bind_process(identity(process, rank=local_rank, started_ns=time.monotonic_ns()))
    board.close()


def test_no_environment_is_read_before_the_ranks_have_ended(
    folder: str, spawn: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read can block forever; then at least the ranks and the directory are gone."""
    ranks = [victim(spawn), stubborn(spawn)]
    for local_rank, process in enumerate(ranks):
        _admit(folder, local_rank, process)
    seen: list[tuple[bool, bool]] = []

    def has_environment(pid: int, marker: bytes) -> bool:
        seen.append((any(alive(rank.pid) for rank in ranks), os.path.exists(folder)))
        return False

    monkeypatch.setattr(proc, "has_environment", has_environment)
    settings = Settings(folder, 1.0, signal.SIGKILL, 1.0)
    clean_up(Watch(settings, lambda _: None), folder)
    assert [rank.wait() for rank in ranks] == [-signal.SIGTERM, -signal.SIGKILL]
    assert set(seen) == {(False, False)}


def test_a_rank_that_was_just_being_started_is_found(folder: str, spawn: Spawner) -> None:
    """It gets the environment by which it is known after the first look."""
    late = f"while [ -e {folder} ]; do sleep 0.02; done; sleep 0.2; exec env BOARD={folder}/0 sleep 600"
    rank = spawn(["sh", "-c", late])
    clean_up(Watch(Settings(folder, 1.0, signal.SIGKILL, 1.0), lambda _: None), folder)
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
