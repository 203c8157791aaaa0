"""torch cannot start the store in which the ranks of a cycle meet: the port is bound, and nothing answers behind it.

The ranks would wait without a word until torch's own timeout of many minutes.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import psutil
import pytest

from holdfast.fault_tolerance.launcher.rank_store import ENDED
from tests.launcher.conftest import LAUNCHER, Jobs

WITHOUT_STORE = f"""
import sys
from holdfast.fault_tolerance.launcher import rank_store
from holdfast.fault_tolerance.launcher.main import console

rank_store.HOST = sys.argv[0].replace("launcher.py", "host.py")
sys.argv[:] = sys.argv[{len(LAUNCHER)}:]
console()
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

PATIENT = f"""
import sys
from holdfast.fault_tolerance.launcher.main import console
from holdfast.fault_tolerance.launcher.warm import forked, zygotes

forked.FORKS = zygotes.FORKS = 60.0
sys.argv[:] = sys.argv[{len(LAUNCHER)}:]
console()
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
    launcher = tmp_path / "launcher.py"
    launcher.write_text(WITHOUT_STORE)
    (tmp_path / "host.py").write_text(HOST)
    return [sys.executable, str(launcher)]


def test_rank_store_failure_ends_each_cycle(jobs: Jobs, under: list[str]) -> None:
    flags = ["--ft-warm-start=off", "--max-restarts=1", "--nproc-per-node=2"]
    job = jobs.command(*flags, jobs.script(CONNECTS), under=under)
    assert REASON in job.end(1)
    assert not job.lines("met")
    (restart,) = job.journal("restart")
    (end,) = job.journal("run_end")
    assert REASON in restart["reason"] and REASON in end["reason"] and end["exit_code"] == 1


def test_rank_store_failure_is_told_to_the_other_node(jobs: Jobs, under: list[str]) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = ["--ft-warm-start=off", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job"]
    flags += [f"--rdzv-endpoint=localhost:{port}", jobs.script(CONNECTS)]
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
    (host,) = [
        each for each in psutil.Process(job.pid).children() if "store_host.py" in " ".join(each.cmdline())
    ]
    host.kill()
    job.end(0)
    job.hear("met", ranks=[0], cycle=1)
    (restart,) = job.journal("restart")
    assert ENDED in restart["reason"]


def test_rank_store_host_forked_is_no_first_victim_of_the_oom_killer(jobs: Jobs, tmp_path: Path) -> None:
    """Unlike the zygote that it is forked from: without the store the cycle is lost.

    The launcher waits longer for the fork than usual: on a busy machine it would start the host cold.
    """
    launcher = tmp_path / "launcher.py"
    launcher.write_text(PATIENT)
    flags = ["--ft-warm-start=on", "--nproc-per-node=1"]
    job = jobs.command(*flags, jobs.script(CONNECTS + "wait()\n"), under=[sys.executable, str(launcher)])
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
