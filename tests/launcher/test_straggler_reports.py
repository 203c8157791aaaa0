"""Straggler reports of a job with a restart, from the ranks to the person who reads them."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from tests.launcher.conftest import Jobs
from tests.launcher.test_metrics_table import samples
from tests.processes import Spawner

PROGRAM = """
import time
import torch.distributed as dist
from holdfast.straggler import Detector
dist.init_process_group("gloo")
Detector.initialize()
for step in range(1, 31):
    with Detector.detection_section("data_loading", profile_cuda=False):
        time.sleep(0.030 if RANK == 1 else 0.010)
    if step % 5 == 0:
        Detector.generate_report()
if CYCLE == 0:
    os._exit(1)  # without shutdown
Detector.shutdown()
dist.barrier()
dist.destroy_process_group()
"""


def test_reports_of_both_cycles_are_told(jobs: Jobs, spawn: Spawner) -> None:
    started = jobs(PROGRAM, "--max-restarts", "1", "--ft-metrics-file=job.prom", nproc=4)
    said = started.end(0)

    def read(command: str) -> list[dict[str, Any]]:
        process = spawn([sys.executable, "-m", "holdfast", command, str(started.run_dir), "--json"])
        assert process.wait() == 0, process.err()
        found: list[dict[str, Any]] = json.loads(process.out())
        return found

    told = read("stragglers")
    assert [one["cycle"] for one in told][-6:] == [1] * 6 and {one["cycle"] for one in told} == {0, 1}
    assert [verdict["rank"] for verdict in told[-1]["verdicts"]] == [1]
    assert [one["kind"] for one in read("incidents")] == ["exit"]
    assert (started.run_dir / "straggler-state.rank-0.npz").exists()
    assert len(re.findall(r"STRAGGLER: rank 1 \(node ", said)) == 2  # once in each cycle

    metrics = samples((jobs.folder / "job.prom").read_text())
    assert metrics["holdfast_straggler_findings",] == 1
    slowdown = told[-1]["verdicts"][0]["slowdown"]
    assert metrics["holdfast_straggler_slowdown_ratio",] == pytest.approx(slowdown, abs=0.01)
