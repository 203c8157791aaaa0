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
from tests.processes import Spawned, Spawner
from tests.ptl_resiliency import documents
from tests.ptl_resiliency.small import IS_2_4

ROOT = Path(__file__).resolve().parents[2]
JOB_IN_A_ROW = Path(__file__).resolve().parent / "programs" / "job_in_a_row.py"


@pytest.mark.slow
def test_limits_are_learned_in_the_second_job_and_used_in_the_third(spawn: Spawner, tmp_path: Path) -> None:
    """And the flag comes with the last. Rank 1 does not see the folder of the state: it has the limits all the same."""
    flag, state = tmp_path / "flag", tmp_path / "state"
    ended = []
    for number in range(1, 6):
        ended.append(run(spawn, tmp_path, number))
        learned = {
            path.name: json.loads(path.read_text())["current_timeouts"] for path in state.glob("*.json")
        }
        if number == 1:
            assert list(learned) == ["_ft_state_.json"]
            assert sorted(learned["_ft_state_.json"]["section"]["calculated_sections"]) == [
                "checkpointing",
                "step",
            ]
        if number == 2:
            at_the_end_of_the_second = learned
            assert learned["_ft_state_.json"]["section"]["is_out_of_section_calculated"]
        if flag.exists():
            break
    first, second, third = ended
    assert [rank["first"] for rank in told(first)] == [0, 0]
    assert [rank["limits"] for rank in told(second)] == [[3600.0, 2700.0]] * 2
    assert (
        "Updating FT timeouts...\n" not in first.err()
        and second.err().count("Updating FT timeouts...\n") == 1
    )
    assert (
        "Updating FT timeouts for: ['setup', 'step', 'checkpointing'] update out-of-section: True"
        in second.err()
    )
    heartbeat = at_the_end_of_the_second["_ft_state.json"]["heartbeat"]
    section = at_the_end_of_the_second["_ft_state_.json"]["section"]
    for rank in told(third):
        assert rank["limits"] == [heartbeat["initial"], heartbeat["subsequent"]]
        assert rank["sections"] == section["section"] and rank["out"] == section["out_of_section"]
        assert rank["first"] == 40
    assert "[FaultToleranceCallback@rank0] Fault tolerance timeouts loaded: heartbeat timeouts" in third.err()
    assert "Training is complete (max_steps=45 reached), so creating finished flag file." in third.err()
    assert not (tmp_path / "another node").exists()
    assert not [path for path in (tmp_path / "saved").iterdir() if path.suffix != ".ckpt"]


def run(spawn: Spawner, folder: Path, number: int) -> Spawned:
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    job = spawn(
        [
            *launcher,
            f"--ft-run-dir={folder / f'run{number}'}",
            "--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420",
            "--ft-rank-heartbeat-timeout=2700",
            JOB_IN_A_ROW,
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


survivable = pytest.mark.skipif(
    IS_2_4,
    reason="after a resume Lightning 2.4 trains a batch again and validates at other steps: the faults do not happen",
)
FAULTY_JOB = Path(__file__).parent / "programs" / "faulty_job.py"
LIMITS = ("--ft-rank-section-timeouts=setup:120,step:6,checkpointing:6", "--ft-rank-heartbeat-timeout=6.5")

# In each cycle one: what happens, where, after how many steps. In a save rank 0 is hit, which writes; else rank 1.
FAULTS = (
    ("stop", "step", 7),
    ("sleep", "validation", 10),
    ("gil", "save", 15),
    ("kill", "step", 17),
    ("stop", "validation", 20),
    ("sleep", "save", 25),
    ("gil", "step", 27),
    ("exception", "validation", 30),
    ("stop", "save", 35),
    ("sleep", "step", 37),
    ("gil", "validation", 40),
    ("kill", "save", 45),
)
ESSENTIAL = FAULTS[:4]
"""Each kind once, each place; `make soak` has all of them."""


def start(
    spawn: Spawner, folder: Path, faults: tuple[tuple[str, str, int], ...], *preempted_in: str
) -> Spawned:
    text = ";".join(
        f"{kind}@step={step},point={point},rank={0 if point == 'save' else 1},cycle={cycle}"
        for cycle, (kind, point, step) in enumerate(faults)
    )
    folder.mkdir(exist_ok=True)
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    return spawn(
        [
            *launcher,
            *LIMITS,
            "--max-restarts=20",
            f"--ft-run-dir={folder / 'run'}",
            str(FAULTY_JOB),
            str(folder),
            *preempted_in,
        ],
        env={
            "HOLDFAST_FAULT": text,
            "OMP_NUM_THREADS": "1",
            "FAULT_TOL_FINISHED_FLAG_FILE": str(folder / "finished"),
        },
    )


def survives(spawn: Spawner, folder: Path, faults: tuple[tuple[str, str, int], ...]) -> None:
    undisturbed = start(spawn, folder / "undisturbed", ())
    assert undisturbed.wait(120) == 0, undisturbed.err()[-3000:]
    disturbed = folder / "disturbed"
    job = start(spawn, disturbed, faults, str(len(faults)))
    assert job.wait(60 + 25 * len(faults)) == 0, job.err()[-3000:]
    hangs = [kind for kind, _, _ in faults if kind in ("stop", "sleep", "gil")]
    said = job.out() + job.err()
    assert len(re.findall(r"HANG: rank \d", said)) == len(hangs)
    began = [int(step) for step in re.findall(r"rank 0 cycle \d+ from (\d+)", said)]
    # From the last checkpoint that was complete: one is saved in every fifth step.
    assert began == [
        0,
        *((step - 1) // 5 * 5 if point == "save" else step // 5 * 5 for _, point, step in faults),
    ]
    assert said.count("Preemption detected, saving checkpoint and exiting") == 1
    stopped = torch.load(disturbed / "saved" / "last.ckpt", weights_only=False)["global_step"]
    assert began[-1] + 2 <= stopped < 60 and not (disturbed / "finished").exists()
    again = start(spawn, disturbed, ())
    assert again.wait(120) == 0, again.err()[-3000:]
    assert f"rank 0 cycle 0 from {stopped}\n" in again.out() and (disturbed / "finished").exists()
    expected = torch.load(folder / "undisturbed" / "weights.pt")
    found = torch.load(disturbed / "weights.pt")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@survivable
@pytest.mark.slow
def test_each_kind_of_fault_is_survived(spawn: Spawner, tmp_path: Path) -> None:
    survives(spawn, tmp_path, ESSENTIAL)


@survivable
@pytest.mark.variant
@pytest.mark.timeout(900)
def test_each_kind_of_fault_in_each_place_is_survived(spawn: Spawner, tmp_path: Path) -> None:
    survives(spawn, tmp_path, FAULTS)


# -- the example scripts run as their first lines say, and start and resume with the same command


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "lightning"
LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
QUIET = {"OMP_NUM_THREADS": "1"}


def command(folder: Path, script: str, *more: str, ranks: int = 1) -> list[str]:
    launcher = [*LAUNCHER, f"--nproc-per-node={ranks}", f"--ft-run-dir={folder / 'run'}"]
    return [*launcher, str(EXAMPLES / script), f"--dir={folder / 'saved'}", *more]


LOADER = """
import sys
import bare_lightning
import lightning.pytorch as pl
import torch
from digits import Classifier, Digits

folder, every = sys.argv[1], 0

class Stop(pl.Callback):
    def on_train_batch_end(self, trainer, *rest):
        if trainer.global_step == self.at:
            raise RuntimeError("stop")

def run(folder, at):
    pl.seed_everything(1, verbose=False)
    model, end = Classifier(), Stop()
    end.at = at
    keep = pl.callbacks.ModelCheckpoint(folder, save_last=True, **({"every_n_train_steps": every} if every else {}))
    trainer = pl.Trainer(accelerator="cpu", max_epochs=3, logger=False, enable_progress_bar=False,
                         enable_model_summary=False, use_distributed_sampler=False, callbacks=[end, keep])
    try:
        trainer.fit(model, datamodule=Digits(64), ckpt_path="last")
    except RuntimeError:
        pass
    return list(model.parameters())

expected = run(folder + "/whole", 0)
for every in (0, 7):  # 22 batches an epoch: resumed from the end of the first one, or from step 28
    run(f"{folder}/cut{every}", 30)
    found = run(f"{folder}/cut{every}", 0)
    if not all(map(torch.equal, expected, found)):
        sys.exit(f"every {every}: other weights")
"""


@pytest.mark.slow
def test_the_loader_goes_on_where_the_checkpoint_was(spawn: Spawner, tmp_path: Path) -> None:
    """At the end of an epoch, and in the middle of one."""
    script = tmp_path / "train.py"
    script.write_text(LOADER)
    path = {"PYTHONPATH": f"{EXAMPLES}:{JOB_IN_A_ROW.parent}:{EXAMPLES.parents[1] / 'src'}"}
    job = spawn([sys.executable, str(script), str(tmp_path)], env={**QUIET, **path})
    assert job.wait() == 0, job.output()[-3000:]


ONE_AFTER_ANOTHER = """
import runpy, sys
folder, examples = sys.argv[1:3]
sys.path.insert(0, examples)
for script in ("fault_tolerance", "sections"):
    sys.argv = [script, f"--dir={folder}/{script}", "--epochs=1"]
    runpy.run_path(f"{examples}/{script}.py", run_name="__main__")
"""


@pytest.mark.slow
def test_fault_tolerance_and_sections(spawn: Spawner, tmp_path: Path) -> None:
    script, flag = tmp_path / "train.py", tmp_path / "finished"
    script.write_text(ONE_AFTER_ANOTHER)
    options = [f"--ft-run-dir={tmp_path / 'run'}", "--nproc-per-node=1"]
    options += ["--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420"]
    env = {**QUIET, "FAULT_TOL_FINISHED_FLAG_FILE": str(flag)}
    job = spawn([*LAUNCHER, *options, str(script), str(tmp_path), str(EXAMPLES)], env=env)
    assert job.wait() == 0, job.err()[-3000:]
    assert flag.exists()
    assert all((tmp_path / name / "last.ckpt").exists() for name in ("fault_tolerance", "sections"))


@pytest.mark.slow
def test_stragglers(spawn: Spawner, tmp_path: Path) -> None:
    job = spawn(command(tmp_path, "stragglers.py", "--slow-rank=1", "--stop", ranks=2), env=QUIET)
    assert job.wait() == 1, job.err()[-3000:]
    said = job.out() + job.err()
    assert "Detected stragglers. Terminating training..." in said
    assert re.search(r"Affected ranks: \{StragglerId\(rank=1, ", said)
    assert (tmp_path / "saved" / "last.ckpt").exists()


@pytest.mark.slow
def test_preemption(spawn: Spawner, tmp_path: Path) -> None:
    line = command(tmp_path, "preemption.py", "--epochs=1000")  # resumed: test_preemption_jobs.py
    saved = tmp_path / "saved" / "last.ckpt"
    job = spawn(line, env=QUIET)
    job.wait_for(saved.exists)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 0, job.err()[-3000:]
    assert "Preemption detected, saving checkpoint and exiting" in job.out() + job.err()


# -- the documents' Lightning examples run to their end, and are what the documents say


DOCUMENTS_JOB = Path(__file__).parent / "programs" / "documents_job.py"


@pytest.mark.slow
def test_under_the_launcher_on_two_ranks(spawn: Spawner, tmp_path: Path) -> None:
    flag = tmp_path / "finished"
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    job = spawn(
        [*launcher, f"--ft-run-dir={tmp_path / 'run'}", str(DOCUMENTS_JOB), str(tmp_path)],
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
    job = spawn([sys.executable, str(DOCUMENTS_JOB), str(tmp_path)], env={"OMP_NUM_THREADS": "1"})
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
