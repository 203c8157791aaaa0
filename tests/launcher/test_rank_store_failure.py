"""torch cannot start the store in which the ranks of a cycle meet: the port is bound, and nothing answers behind it."""

from __future__ import annotations

import sys
from pathlib import Path

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


def test_rank_store_failure_ends_the_job_with_its_reason(jobs: Jobs, tmp_path: Path) -> None:
    """The ranks would wait without a word until torch's own timeout of many minutes."""
    launcher = tmp_path / "launcher.py"
    launcher.write_text(WITHOUT_STORE)
    flags = ["--ft-warm-start=off", "--max-restarts=3", "--nproc-per-node=2"]
    job = jobs.command(*flags, jobs.script(CONNECTS), under=[sys.executable, str(launcher)])
    said = job.end(1)
    assert not job.lines("met")
    (lost,) = job.journal("job_lost")
    assert "could not be started: no thread can be started" in lost["reason"]
    assert lost["reason"] in said
    assert [record["exit_code"] for record in job.journal("run_end")] == [1]
