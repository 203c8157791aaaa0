"""The documents' Lightning examples run to their end, and are what the documents say."""

from __future__ import annotations

import inspect
import re
import signal
import sys
from pathlib import Path

import pytest

from holdfast.ptl_resiliency import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    StragglerDetectionCallback,
)
from tests.processes import Spawner
from tests.ptl_resiliency import documents

PROGRAM = Path(__file__).parent / "programs" / "documents_job.py"


@pytest.mark.slow
def test_under_the_launcher_on_two_ranks(spawn: Spawner, tmp_path: Path) -> None:
    flag = tmp_path / "finished"
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    job = spawn(
        [*launcher, f"--ft-run-dir={tmp_path / 'run'}", str(PROGRAM), str(tmp_path)],
        env={"FAULT_TOL_FINISHED_FLAG_FILE": str(flag), "OMP_NUM_THREADS": "1"},
    )
    assert job.wait(120) == 0, job.err()[-3000:]
    out = job.out()
    names = ("fault-tolerance", "with-resume", "guide", *(n.replace("=", "-") for n in documents.NUMBERS))
    for name in names:
        for rank in range(2):
            assert f"ENDED|{name}|{rank}|{48 if name == 'with-resume' else 24}" in out
    assert flag.exists()
    assert (tmp_path / "state" / "_ft_state.json").exists()  # the second job has loaded and saved
    assert "test_logger|[FaultToleranceCallback@rank0] Fault tolerance client initialized." in out
    # Three reports on CPU, of which the one with 0 lists no scores.
    assert len(re.findall(r"test_logger\|Straggler report processing time: \d+\.\d{3} sec\.", out)) >= 2 * 3
    assert len(re.findall(r"relative performance", out)) >= 2


@pytest.mark.slow
def test_without_a_launcher(spawn: Spawner, tmp_path: Path) -> None:
    job = spawn([sys.executable, str(PROGRAM), str(tmp_path)], env={"OMP_NUM_THREADS": "1"})
    assert job.wait(120) == 0, job.err()[-3000:]
    assert "ENDED|stragglers|0|24" in job.out()
    assert "STOPPED|preemption|0" in job.out()
    said = job.out() + job.err()
    assert f"Received signal {signal.SIGTERM.value}, initiating graceful stop" in said
    assert "Preemption detected, saving checkpoint and exiting" in said
    assert list((tmp_path / "preemption").rglob("last.ckpt"))


def parameters(callback: type) -> list[str]:
    return list(inspect.signature(callback).parameters)


def defaults(callback: type) -> dict[str, object]:
    found = inspect.signature(callback.__init__).parameters
    return {name: each.default for name, each in found.items() if each.default is not inspect.Parameter.empty}


def test_the_documented_parameters() -> None:
    shared = ["autoresume", "calculate_timeouts", "simulated_fault_params", "exp_dir", "logger_name"]
    assert parameters(FaultToleranceCallback) == shared
    assert parameters(FaultToleranceSectionsCallback)[:5] == shared
    assert "exc_handling_policy" in parameters(FaultToleranceSectionsCallback)
    for callback in (FaultToleranceCallback, FaultToleranceSectionsCallback):
        assert defaults(callback)["logger_name"] == "nemo_logger.FaultToleranceCallback"
        assert defaults(callback)["simulated_fault_params"] is defaults(callback)["exp_dir"] is None
    straggler = parameters(StragglerDetectionCallback)
    assert straggler[:3] == ["report_time_interval", "calc_relative_gpu_perf", "calc_individual_gpu_perf"]
    assert {"num_gpu_perf_scores_to_log", "num_gpu_perf_scores_to_print"} <= set(straggler)
    assert defaults(StragglerDetectionCallback)["profiling_interval"] == 1
    assert defaults(StragglerDetectionCallback)["logger_name"] == "nemo_logger.StragglerDetectionCallback"
