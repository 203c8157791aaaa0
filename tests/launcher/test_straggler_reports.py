"""Straggler reports of a job with a restart, from the rank to the person who reads them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.launcher.conftest import Jobs
from tests.processes import Spawner

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = f"""
sys.path.insert(0, {str(ROOT)!r})
from holdfast.fault_tolerance import environment
from holdfast.straggler.journal_reports import ReportLog
from tests.straggler.readings.history import report
if RANK == 0:
    log = ReportLog(environment.run_dir(), "n0", RANK, environment.cycle())
    log.write(report(8, {{3: 1.5}}), step=10)
    log.close(timeout=30)
meet()
if CYCLE == 0:
    sys.exit(1)
"""


def test_reports_of_both_cycles_are_told(jobs: Jobs, spawn: Spawner) -> None:
    started = jobs(PROGRAM, "--max-restarts", "1")
    started.end(0)

    def read(command: str) -> list[dict[str, Any]]:
        process = spawn([sys.executable, "-m", "holdfast", command, str(started.run_dir), "--json"])
        assert process.wait() == 0, process.err()
        found: list[dict[str, Any]] = json.loads(process.out())
        return found

    told = read("stragglers")
    assert [(one["cycle"], one["step"], one["verdicts"][0]["rank"]) for one in told] == [
        (0, 10, 3),
        (1, 10, 3),
    ]
    assert [one["kind"] for one in read("incidents")] == ["exit"]
