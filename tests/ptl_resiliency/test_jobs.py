"""Whole jobs: jobs in a row, with one fault after another, the example scripts, and the documents' examples."""

from __future__ import annotations

import inspect
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.ptl_resiliency import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    StragglerDetectionCallback,
)
from tests.compat.conftest import linked, python  # noqa: F401
from tests.processes import Spawned, Spawner
from tests.ptl_resiliency import documents
from tests.ptl_resiliency.small import IS_2_4, Small, saving, trainer

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]


@pytest.mark.slow
def test_limits_are_learned_in_the_second_job_and_used_in_the_third(spawn: Spawner, tmp_path: Path) -> None:
    """And the flag comes with the last. Rank 1 does not see the folder of the state: it has the limits all the same."""
    flag, state = tmp_path / "flag", tmp_path / "state"
    # The first one is short, and of this process.
    trainer(tmp_path, saving(tmp_path / "saved"), max_steps=20).fit(Small())
    second = run(spawn, tmp_path, 2)
    learned = {path.name: json.loads(path.read_text())["current_timeouts"] for path in state.glob("*.json")}
    assert not flag.exists()
    assert [rank["limits"] for rank in told(second)] == [[3600.0, 2700.0]] * 2
    assert second.err().count("Updating FT timeouts...\n") == 1
    assert (
        "Updating FT timeouts for: ['setup', 'step', 'checkpointing'] update out-of-section: True"
        in second.err()
    )
    heartbeat = learned["_ft_state.json"]["heartbeat"]
    section = learned["_ft_state_.json"]["section"]
    third = run(spawn, tmp_path, 3)
    assert flag.exists()
    for rank in told(third):
        assert rank["limits"] == [heartbeat["initial"], heartbeat["subsequent"]]
        assert rank["sections"] == section["section"] and rank["out"] == section["out_of_section"]
        assert rank["first"] == 40
    assert "[FaultToleranceCallback@rank0] Fault tolerance timeouts loaded: heartbeat timeouts" in third.err()
    assert "Training is complete (max_steps=45 reached), so creating finished flag file." in third.err()
    assert not (tmp_path / "another node").exists()
    assert not [path for path in (tmp_path / "saved").iterdir() if path.suffix != ".ckpt"]


def run(spawn: Spawner, folder: Path, number: int) -> Spawned:
    job = spawn(
        [
            *LAUNCHER,
            "--nproc-per-node=2",
            f"--ft-run-dir={folder / f'run{number}'}",
            "--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420",
            "--ft-rank-heartbeat-timeout=2700",
            PROGRAMS / "job_in_a_row.py",
            folder,
        ],
        env={
            "FAULT_TOL_FINISHED_FLAG_FILE": str(folder / "flag"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        },
    )
    assert job.wait(120) == 0, job.output()[-6000:]
    return job


def told(job: Spawned) -> list[dict[str, Any]]:
    """What each rank said."""
    lines = [json.loads(line) for line in job.out().splitlines() if line.startswith('{"rank"')]
    assert sorted(line["rank"] for line in lines) == [0, 1]
    return lines


# -- hangs, crashes and a preemption of a Lightning training


FAULTY_JOB = PROGRAMS / "faulty_job.py"
LIMITS = ("--ft-rank-section-timeouts=setup:120,step:6,checkpointing:6", "--ft-rank-heartbeat-timeout=6.5")

# In each cycle one: what happens, where, after how many steps. In a save rank 0 is hit, which writes; else rank 1.
FAULTS = (("stop", "step", 7), ("sleep", "validation", 10), ("gil", "save", 15), ("kill", "step", 17))


def start(spawn: Spawner, folder: Path, *preempted_in: str) -> Spawned:
    """A job that survives the faults and is preempted in this cycle, or one without faults."""
    text = ";".join(
        f"{kind}@step={step},point={point},rank={0 if point == 'save' else 1},cycle={cycle}"
        for cycle, (kind, point, step) in enumerate(FAULTS)
    )
    env = {
        "HOLDFAST_FAULT": text if preempted_in else "",
        "OMP_NUM_THREADS": "1",
        "FAULT_TOL_FINISHED_FLAG_FILE": str(folder / "finished"),
    }
    options = [*LIMITS, "--nproc-per-node=2", "--max-restarts=20", f"--ft-run-dir={folder / 'run'}"]
    return spawn([*LAUNCHER, *options, FAULTY_JOB, folder, *preempted_in], env=env)


@pytest.mark.skipif(
    IS_2_4,
    reason="after a resume Lightning 2.4 trains a batch again and validates at other steps: the faults do not happen",
)
@pytest.mark.slow
def test_each_kind_of_fault_and_a_preemption_are_survived(spawn: Spawner, tmp_path: Path) -> None:
    """The weights are those of an undisturbed training, which the last start does at its end."""
    job = start(spawn, tmp_path, str(len(FAULTS)))
    assert job.wait(160) == 0, job.err()[-3000:]
    hangs = [kind for kind, _, _ in FAULTS if kind in ("stop", "sleep", "gil")]
    said = job.out() + job.err()
    assert len(re.findall(r"HANG: rank \d", said)) == len(hangs)
    began = [int(step) for step in re.findall(r"rank 0 cycle \d+ from (\d+)", said)]
    # From the last checkpoint that was complete: one is saved in every fifth step.
    assert began == [
        0,
        *((step - 1) // 5 * 5 if point == "save" else step // 5 * 5 for _, point, step in FAULTS),
    ]
    assert said.count("Preemption detected, saving checkpoint and exiting") == 1
    stopped = torch.load(tmp_path / "saved" / "last.ckpt", weights_only=False)["global_step"]
    assert began[-1] + 2 <= stopped < 60 and not (tmp_path / "finished").exists()
    again = start(spawn, tmp_path)
    assert again.wait(120) == 0, again.err()[-3000:]
    assert f"rank 0 cycle 0 from {stopped}\n" in again.out() and (tmp_path / "finished").exists()
    expected = torch.load(tmp_path / "undisturbed" / "weights.pt")
    found = torch.load(tmp_path / "weights.pt")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


# -- the example scripts run as their first lines say


EXAMPLES = ROOT / "examples" / "lightning"


@pytest.mark.slow
def test_the_examples(spawn: Spawner, tmp_path: Path) -> None:
    """One after another in one job; the one on preemption is the last. Resumed: test_preemption_jobs.py."""
    options = ["--nproc-per-node=2", f"--ft-run-dir={tmp_path / 'run'}"]
    options += ["--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420"]
    env = {"OMP_NUM_THREADS": "1", "FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "finished")}
    program = PROGRAMS / "lightning_examples.py"
    job = spawn([*LAUNCHER, *options, program, EXAMPLES, tmp_path], env=env)
    job.wait_for((tmp_path / "preemption" / "last.ckpt").exists, 150)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 0, job.err()[-3000:]
    said = job.out() + job.err()
    assert (tmp_path / "finished").exists()
    assert job.out().count("stragglers ends with 1") == job.out().count("preemption ends with 0") == 2
    assert "Detected stragglers. Terminating training..." in said
    assert re.search(r"Affected ranks: \{StragglerId\(rank=1, ", said)
    assert "Preemption detected, saving checkpoint and exiting" in said
    for name in ("fault_tolerance", "sections", "stragglers"):
        assert (tmp_path / name / "last.ckpt").exists(), name


# -- the documents' Lightning examples run to their end, and are what the documents say


@pytest.mark.slow
def test_the_documents(spawn: Spawner, python: str, tmp_path: Path) -> None:  # noqa: F811
    """With the imports that they have, under the launcher of the same name."""
    launcher = [python, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher", "--nproc-per-node=1"]
    job = spawn(
        [*launcher, f"--ft-run-dir={tmp_path / 'run'}", PROGRAMS / "documents_job.py", tmp_path],
        env={"FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "finished"), "OMP_NUM_THREADS": "1"},
    )
    assert job.wait(120) == 0, job.err()[-3000:]
    out, home = job.out(), "holdfast.ptl_resiliency.callbacks"
    assert f"ENDED|fault-tolerance|24|{home}.FaultToleranceCallback" in out
    assert f"ENDED|with-resume|48|{home}.FaultToleranceCallback" in out
    for name in ("guide", *documents.NUMBERS):
        assert f"ENDED|{name}|24|{home}.StragglerDetectionCallback" in out
    assert (tmp_path / "finished").exists()
    assert (tmp_path / "state" / "_ft_state.json").exists()  # the second job has loaded and saved
    assert "test_logger|[FaultToleranceCallback@rank0] Fault tolerance client initialized." in out
    # Three reports on CPU, of which the one with 0 lists no scores.
    assert len(re.findall(r"test_logger\|Straggler report processing time: \d+\.\d{3} sec\.", out)) >= 3
    assert len(re.findall(r"relative performance", out)) >= 2
    # NeMo's
    assert "ENDED|stragglers|24" in out and "STOPPED|preemption|0" in out
    said = out + job.err()
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
