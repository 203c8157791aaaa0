"""RankMonitorServer: a monitor for one rank that a foreign launcher starts. Real processes throughout."""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance import (
    FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
    FaultToleranceConfig,
    RankMonitorLogger,
    RankMonitorServer,
)
from holdfast.fault_tolerance.board import BoardReader, Snapshot
from holdfast.fault_tolerance.board.values import OWNER_FILE
from holdfast.fault_tolerance.errors import HoldfastError
from holdfast.fault_tolerance.monitor.control import ControlPage
from holdfast.fault_tolerance.processes import proc
from holdfast.fault_tolerance.server import RankMonitorProcess
from tests.pipes import full_pipe
from tests.processes import Spawned, Spawner, wait_until

_RANK = """
import json, sys, time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
print(json.dumps(client.cfg.to_dict()["rank_section_timeouts"]), flush=True)
what = sys.argv[1]
if what == "hang":
    client.start_section("data loading")
    time.sleep(600)
if what == "slow second step":
    for seconds in (1.5, 600):
        with client.section("step"):
            time.sleep(seconds)
if what == "finish":
    client.shutdown_workload_monitoring()
    print("finished", flush=True)
    time.sleep(600)
while True:
    client.send_heartbeat()
    time.sleep(0.02)
"""


_STARTER = """
import json, sys, time
from holdfast.fault_tolerance import FaultToleranceConfig, RankMonitorServer
monitor = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(**json.loads(sys.argv[2])), sys.argv[1])
print("monitor", monitor.pid, flush=True)
time.sleep(600)
"""
_LIMITS: dict[str, Any] = {
    "rank_heartbeat_timeout": 30.0,
    "rank_section_timeouts": {"data loading": 0.5},
    "rank_termination_signal": "SIGTERM",
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "rank.socket")


@pytest.fixture
def server(path: str) -> Iterator[RankMonitorProcess]:
    """A monitor with short limits."""
    config = FaultToleranceConfig.from_kwargs(**_LIMITS)
    process = RankMonitorServer.run_in_subprocess(config, path, is_restarter_logger=False, mp_ctx=None)
    yield process
    _ended(process)


def _rank(spawn: Spawner, path: str, what: str) -> Spawned:
    assert FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR == "FT_RANK_MONITOR_IPC_SOCKET"
    env = {FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR: path, "RANK": "5", "LOCAL_RANK": "1"}
    rank = spawn.python(_RANK, what, env=env)
    rank.wait_for(r"^\{")
    return rank


def _starter(spawn: Spawner, path: str, into: Sequence[str] = (), **limits: Any) -> tuple[Spawned, int]:
    """A process that starts a monitor, whose lines are in its output; and the monitor's pid."""
    starter = spawn([*into, sys.executable, "-c", _STARTER, path, json.dumps(limits or _LIMITS)])
    started = starter.wait_for(r"^monitor (\d+)$")
    assert isinstance(started, re.Match)
    return starter, int(started[1])


def _ended(*processes: RankMonitorProcess) -> None:
    for process in processes:
        process.terminate()
        process.join(30)
        assert not process.is_alive()


def _snapshot(path: str) -> Snapshot:
    reader = BoardReader(path)
    snapshot = reader.snapshot()
    reader.close()
    return snapshot


def _admitted(path: str, rank: Spawned) -> bool:
    identity = _snapshot(path).identity
    return identity is not None and identity.pid == rank.pid


def test_a_hung_rank_is_ended_and_explained(spawn: Spawner, path: str) -> None:
    starter, _ = _starter(spawn, path)
    rank = _rank(spawn, path, "hang")
    assert rank.out().strip() == '{"data loading": 0.5}', "the rank got other settings"
    assert rank.wait() == -signal.SIGTERM
    starter.wait_for(
        rf"^\[holdfast\] HANG: rank 5 \(node .*, pid {rank.pid}, cycle 0\): "
        r"Section 'data loading' did not end\. Waited \d+\.\d+ seconds\. Timeout 0\.5 s\."
    )


def test_first_steps_of_a_rank_may_take_longer(spawn: Spawner, path: str) -> None:
    """`num_warmup_iterations`: the first step takes three times the timeout, and the second one is a hang."""
    starter, _ = _starter(spawn, path, rank_section_timeouts={"step": 0.5}, num_warmup_iterations=1)
    rank = _rank(spawn, path, "slow second step")
    assert rank.wait() == -signal.SIGKILL
    starter.wait_for(r"Section 'step' did not end\. Waited \d+\.\d+ seconds\. Timeout 0\.5 s\.")
    assert starter.output().count("did not end") == 1


def test_a_hung_rank_is_ended_though_nobody_reads_standard_error(spawn: Spawner, path: str) -> None:
    reader, writer = full_pipe()
    into = ["bash", "-c", f'exec "$@" 2>/proc/{os.getpid()}/fd/{writer}', "bash"]
    starter, _ = _starter(spawn, path, into)
    assert _rank(spawn, path, "hang").wait() == -signal.SIGTERM
    starter.kill()
    for end in (reader, writer):
        os.close(end)


def test_one_monitor_serves_successive_ranks(spawn: Spawner, server: RankMonitorProcess, path: str) -> None:
    """One that finished is left alone, and a scheduler's signals do not end the monitor, which leaves nothing."""
    folder = Path(os.readlink(path)).parent.parent
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.parent == Path("/dev/shm")
    first = _rank(spawn, path, "beat")
    wait_until(lambda: _admitted(path, first), what="the first rank is known")
    identity = _snapshot(path).identity
    assert identity is not None and (identity.rank, identity.local_rank) == (5, 1)
    first.stop(signal.SIGKILL)
    second = _rank(spawn, path, "beat")
    wait_until(lambda: _admitted(path, second), what="the second rank is known")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(server.pid, number)
    second.stop()
    finished = _rank(spawn, path, "finish")
    finished.wait_for("finished")
    hung = _rank(spawn, path, "hang")
    assert hung.wait() == -signal.SIGTERM
    assert server.is_alive() and server.exitcode is None
    assert finished.returncode is None
    _ended(server)
    assert server.exitcode == 0 and not os.path.lexists(path) and not folder.exists()


def test_folder_that_a_cleaner_removes_ends_no_supervision(
    spawn: Spawner, server: RankMonitorProcess, path: str
) -> None:
    """logind empties /dev/shm with RemoveIPC. A rank that has just connected is bound, and `terminate` still works."""
    folder = Path(os.readlink(path)).parent.parent
    wait_until((folder / OWNER_FILE).exists, what="the monitor holds its folder")
    wait_until(lambda: ControlPage(str(folder)).tick, what="the monitor scans")
    os.kill(server.pid, signal.SIGSTOP)
    rank = _rank(spawn, path, "hang")
    shutil.rmtree(folder)
    os.kill(server.pid, signal.SIGCONT)
    assert rank.wait() == -signal.SIGTERM
    assert server.is_alive()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_starter(spawn: Spawner, path: str, how: int) -> None:
    starter, pid = _starter(spawn, path)
    rank = _rank(spawn, path, "beat")
    wait_until(lambda: _admitted(path, rank), what="the monitor is up")
    folder = Path(os.readlink(path)).parent.parent
    started = proc.start_time(pid) or 0
    starter.stop(how)
    wait_until(lambda: not proc.is_running(pid, started), what="the monitor ended with its starter")
    assert not os.path.lexists(path) and not folder.exists()
    assert rank.returncode is None, "a rank that works is not the monitor's to end"


def test_folder_of_a_killed_monitor_and_starter_is_removed(spawn: Spawner, path: str) -> None:
    """`scancel`, or the kernel's OOM killer, ends both at once; the next monitor of this user removes the folder."""
    starter, pid = _starter(spawn, path)
    folder = Path(os.readlink(path)).parent.parent
    wait_until((folder / OWNER_FILE).exists, what="the monitor holds its folder")
    living = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), f"{path}.1")
    assert folder.exists(), "it is in use"
    started = proc.start_time(pid) or 0
    os.kill(pid, signal.SIGKILL)
    starter.stop(signal.SIGKILL)
    wait_until(lambda: not proc.is_running(pid, started), what="the monitor ended")
    # What it has open is closed with its last thread, which may outlive the main thread.
    wait_until(lambda: len(glob.glob(f"/proc/{pid}/task/*")) < 2, what="its threads ended")
    successor = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), path)
    assert not folder.exists()
    _ended(living, successor)


def test_a_left_over_of_ours_is_replaced(path: str) -> None:
    killed = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), path)
    old = os.readlink(path)
    successor = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), path)
    assert os.readlink(path) != old
    killed.kill()
    killed.join(30)
    assert os.path.exists(path), "the end of the first took the path from the second"
    _ended(successor)


@pytest.mark.parametrize("what", ["file", "folder", "foreign link"])
def test_what_is_not_ours_is_not_touched(path: str, what: str, tmp_path: Path) -> None:
    if what == "file":
        Path(path).touch()
    elif what == "folder":
        os.mkdir(path)
    else:
        os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(HoldfastError, match="cannot be made to lead to a board: File exists"):
        RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), path)
    assert os.path.lexists(path)


def test_logger_lines_name_the_connected_rank(capsys: pytest.CaptureFixture[str]) -> None:
    logger = RankMonitorLogger()
    assert (logger.name, logger.level) == ("RankMonServer", logging.INFO)
    logger.debug("not shown")
    logger.info("waiting")
    logger.set_connected_rank(3)
    logger.warning("lost after %d s", 5)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("[INFO] [RankMonServer]: waiting")
    assert second.endswith("[WARNING] [RankMonServer] rank 3: lost after 5 s")
    own = RankMonitorLogger("mine", logging.DEBUG)
    assert isinstance(own, logging.Logger)
    own.debug("shown")
    assert capsys.readouterr().err.endswith("[DEBUG] [mine]: shown\n")
