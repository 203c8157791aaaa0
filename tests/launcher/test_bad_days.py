"""Unplanned events: the job continues where it can, and otherwise ends in good order."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.fault_tolerance.launcher.exit_codes import RankExit
from holdfast.fault_tolerance.launcher.inbox import Inbox
from holdfast.fault_tolerance.launcher.monitor_keeper import MonitorKeeper
from holdfast.fault_tolerance.launcher.rank_store import ENDED
from holdfast.fault_tolerance.launcher.ranks import failures
from holdfast.fault_tolerance.launcher.ranks.failures import Failure
from holdfast.fault_tolerance.monitor.control import ControlPage, Settings
from tests.jobs import CONSOLE, Job, Jobs, patient
from tests.processes import alive, free_port, wait_until


def test_boards_that_somebody_removed(jobs: Jobs) -> None:
    text = """
import shutil
meet()
if CYCLE == 0 and RANK == 0:
    shutil.rmtree(os.path.dirname(os.path.dirname(os.environ["FT_RANK_MONITOR_IPC_SOCKET"])))
    sys.exit(3)
if CYCLE == 1:
    client = connect()
    client.send_heartbeat()
wait() if CYCLE < 2 else None
"""
    job = jobs(text, "--max-restarts", "2", "--ft-rank-heartbeat-timeout", "0.5")
    job.end(0)
    assert [each["cycle"] for each in job.journal("verdict")][:1] == [1]  # supervision is back


# Breaks the launcher in the place that the test names, before it runs.
BREAK = f"""
from holdfast.fault_tolerance.launcher import local_ranks
{{place}} = lambda *_: 1 / 0
{CONSOLE}
"""


def broken(jobs: Jobs, place: str, script: str) -> Job:
    return jobs(script, under=[sys.executable, "-c", BREAK.format(place=place)])


def test_a_defect_of_the_launcher_ends_the_job_in_good_order(jobs: Jobs) -> None:
    job = broken(jobs, "local_ranks.ProcessStates.refresh", "wait()")
    assert "Traceback" not in job.end(1)
    (error,) = job.journal("launcher_error")
    assert "ZeroDivisionError" in error["traceback"] and job.journal("run_end")
    assert not any(alive(each["pid"]) for each in job.journal("rank_start"))


def test_a_defect_in_stopping_leaves_no_rank(jobs: Jobs) -> None:
    job = broken(jobs, "local_ranks.RankGroup.signal", "meet()\nsys.exit(3) if RANK else wait()")
    job.end(1)
    assert job.journal("launcher_error")
    pids = [each["pid"] for each in job.journal("rank_start")]
    assert len(pids) == 2 and not any(map(alive, pids))


def test_a_defect_in_what_only_informs_people_is_harmless(jobs: Jobs) -> None:
    job = broken(jobs, "local_ranks.Incidents.capture", "meet()\nsys.exit(3)")
    job.end(3)
    assert [each["what"] for each in job.journal("launcher_error")] == ["the taking of evidence"]


@pytest.fixture
def keeper() -> Iterator[MonitorKeeper]:
    folder = tempfile.mkdtemp(prefix="holdfast-", dir="/dev/shm")
    control, inbox = ControlPage.create(folder), Inbox()
    keeper = MonitorKeeper(Settings(folder, 1.0, signal.SIGKILL, 1.0), control, inbox, lambda _: None)
    yield keeper
    keeper.close()
    inbox.close()
    control.close()
    os.unlink(os.path.join(folder, "control"))
    os.rmdir(folder)


def test_no_monitor_at_first(keeper: MonitorKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nowhere/python")
        keeper.open()
        assert keeper.pid == 0
        keeper.check(time.monotonic())
    wait_until(lambda: keeper.check(time.monotonic() + 5) or keeper.pid)
    assert alive(keeper.pid)


def test_strange_error_file_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text('{"message": {"message": "E: x", "extraInfo": {"py_callstack": ["a\\n", "b\\n"]}}}')
    found = [Failure(RankExit(0, 0, 1, 1, 1.0), None)]
    (failure,) = failures.in_full(found, lambda local: (str(path), []), "logs")
    assert "  b" in failures.block([failure], "n", 0, whole=True)


# -- checks of the only node that find something: it trains, with a warning ----------------------------------

TRAINS = """
say("trains")
until("finish")
"""


def test_a_node_that_gets_sick_while_ranks_train_kills_nothing(jobs: Jobs, tmp_path: Path) -> None:
    """Also where it is to be excluded: no other node is left. It is logged once, and is in the report of a failure."""
    sick = tmp_path / "sick"
    command = f"if test -e '{sick}'; then echo 'the card is loose'; exit 1; fi"
    flags = ["--ft-health-command", command, "--ft-node-health-check-interval", "0.2"]
    job = jobs(f"{TRAINS}sys.exit(3)", *flags, "--ft-health-action", "exclude")
    job.hear("trains", ranks=[0, 1])
    sick.touch()
    job.wait_for(r"health of this node: command: the card is loose \(sick\)")
    job.wait_for("the job has no other node: it continues on this one, although it is sick")
    job.tell("finish")
    assert job.end(3).count("health of this node: ") == 1
    assert not job.journal("restart", "node_excluded")
    (event,) = job.journal("health")
    assert (event["check"], event["verdict"], event["hardware"]) == ("command", "sick", False)
    (report,) = job.run_dir.glob("incidents/*/report.txt")
    assert "Health of the node, command: the card is loose." in report.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_that_hangs_ends_with_its_launcher(jobs: Jobs, tmp_path: Path, number: int) -> None:
    """It holds up nothing before that, as little as storage that hangs."""
    pid, pipe = tmp_path / "pid", tmp_path / "pipe"
    os.mkfifo(pipe)
    flags = ["--ft-health-command", f"echo $$ > {pid}; sleep 1000", "--ft-health-timeout", "500"]
    job = jobs(TRAINS, *flags, "--ft-storage-health-check-path", pipe, nproc=1)
    job.hear("trains", ranks=[0])
    wait_until(lambda: pid.exists() and pid.read_text(), what="the command has begun")
    job.spawned.send_signal(number)
    wait_until(lambda: not alive(int(pid.read_text())), what="the command has ended")
    job.spawned.wait()


# -- torch cannot start the store in which the ranks of a cycle meet


WITHOUT_STORE = f"""
from holdfast.fault_tolerance.launcher import rank_store
rank_store.HOST = "FILE"
{CONSOLE}
"""
HOST = """
import sys

sys.path[:] = sys.argv[2:]
from holdfast.fault_tolerance.launcher import store_host

def refuse(*where):
    raise RuntimeError("no thread can be started")

store_host._store = refuse
store_host.serve(int(sys.argv[1]))
"""

CONNECTS = """
import torch.distributed as dist
say("starts")
dist.init_process_group("gloo")
say("met")
"""

REASON = "could not be started: no thread can be started"


@pytest.fixture
def under(tmp_path: Path) -> list[str]:
    """A launcher whose torch cannot start that store."""
    (tmp_path / "host.py").write_text(HOST)
    return [sys.executable, "-c", WITHOUT_STORE.replace("FILE", str(tmp_path / "host.py"))]


def test_rank_store_failure_ends_each_cycle(jobs: Jobs, under: list[str]) -> None:
    flags = ["--ft-warm-start=off", "--max-restarts=1", "--nproc-per-node=2"]
    job = jobs.command(*flags, jobs.script(CONNECTS), under=under)
    assert REASON in job.end(1)
    assert not job.lines("met")
    (restart,) = job.journal("restart")
    (end,) = job.journal("run_end")
    assert REASON in restart["reason"] and REASON in end["reason"] and end["exit_code"] == 1


def test_rank_store_failure_is_told_to_the_other_node(jobs: Jobs, under: list[str]) -> None:
    flags = ["--ft-warm-start=off", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job"]
    flags += [f"--rdzv-endpoint=localhost:{free_port()}", jobs.script(CONNECTS)]
    nodes = [
        jobs.command(f"--node-rank={rank}", f"--rdzv-conf=is_host={1 - rank}", *flags, under=under)
        for rank in range(2)
    ]
    assert all(REASON in node.end(1) for node in nodes)
    assert all(REASON in end["reason"] for node in nodes for end in node.journal("run_end"))


def test_rank_store_host_that_is_killed_costs_a_restart(jobs: Jobs) -> None:
    text = CONNECTS + "wait() if CYCLE == 0 else os._exit(0)\n"
    job = jobs(text, "--ft-warm-start=off", "--max-restarts=1", nproc=1)
    job.hear("met", ranks=[0])
    children = psutil.Process(job.pid).children()
    (host,) = (each for each in children if "store_host.py" in " ".join(each.cmdline()))
    host.kill()
    job.end(0)
    job.hear("met", ranks=[0], cycle=1)
    (restart,) = job.journal("restart")
    assert ENDED in restart["reason"]


def test_rank_store_host_forked_is_no_first_victim_of_the_oom_killer(jobs: Jobs) -> None:
    """Unlike the zygote that it is forked from: without the store the cycle is lost."""
    job = jobs(CONNECTS + "wait()\n", "--ft-warm-start=on", nproc=1, under=patient())
    job.hear("met", ranks=[0])
    children = psutil.Process(job.pid).children()
    scores = {each.name(): Path(f"/proc/{each.pid}/oom_score_adj").read_text() for each in children}
    assert scores["hf-store"] == Path(f"/proc/{job.pid}/oom_score_adj").read_text() != scores["hf-zygote"]


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_rank_store_host_of_a_launcher_with_closed_streams_serves(jobs: Jobs, mode: str) -> None:
    """Its control socket may have the number of a standard stream."""
    script = jobs.script("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    closed = ["bash", "-c", 'exec "$@" <&- >&-', "bash"]
    jobs.command(f"--ft-warm-start={mode}", "--nproc-per-node=2", script, under=closed).end(0)
