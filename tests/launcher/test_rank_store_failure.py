"""torch cannot start the store in which the ranks of a cycle meet: the port is bound, and nothing answers behind it.

The ranks would wait without a word until torch's own timeout of many minutes.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.launcher.conftest import LAUNCHER, Jobs

WITHOUT_STORE = f"""
import sys
import torch.distributed as dist

TCPStore = dist.TCPStore

def refuse(*args, **kwargs):
    if "master_listen_fd" in kwargs:
        raise RuntimeError("no thread can be started")
    return TCPStore(*args, **kwargs)

dist.TCPStore = refuse
from holdfast.fault_tolerance.launcher.main import console
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
