"""The example under ft_launcher on two ranks: killed, preempted, resumed, with the same weights."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.processes import Spawned, Spawner

from .small import LOADS_TO_CPU_0, VERSION

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "transformers"
SCRIPT, LOOP = EXAMPLES / "train.py", EXAMPLES / "accelerate_loop.py"
TWICE = Path(__file__).parent / "programs" / "and_undisturbed.py"
LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
STEPS = 150
"""A second and more, of which a busy machine may take some between a checkpoint and the signal that follows it."""
SCHEDULE = [f"--steps={STEPS}", "--save-every=15"]

pytestmark = pytest.mark.slow


def job(spawn: Spawner, script: Path, folder: Path, *options: str, then_undisturbed: bool = False) -> Spawned:
    """One of two ranks; at its end, if it is asked to, it trains once more, undisturbed, in a folder beside."""
    launcher = [*LAUNCHER, "--nproc-per-node=2", "--max-restarts=1", f"--ft-run-dir={folder}-run", *options]
    env = {**QUIET, "FAULT_TOL_FINISHED_FLAG_FILE": f"{folder}.flag"}
    command = [str(TWICE), str(script), str(folder)] if then_undisturbed else [str(script), f"--dir={folder}"]
    return spawn([*launcher, *command, *SCHEDULE], env=env)


def rank(launcher: Spawned, number: int) -> psutil.Process:
    """The process that is this rank now."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        if process.environ().get("RANK") == str(number) and process.name().startswith("python"):
            return process
    raise AssertionError(f"there is no rank {number}")


def complete(folder: Path, step: int) -> bool:
    place = folder / f"checkpoint-{step}"
    return (place / "trainer_state.json").exists() and not (place / "checkpoint-is-incomplete.txt").exists()


def same_weights(folder: Path, file: str) -> bool:
    """As in the folder of the undisturbed training, bit by bit."""
    mine, theirs = (load_file(place / file) for place in (folder, Path(f"{folder}-undisturbed")))
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.skipif(
    LOADS_TO_CPU_0,
    reason=f"transformers {VERSION} loads the optimizer to cpu:0, and torch 2.13 refuses it",
)
def test_a_killed_and_a_preempted_job_end_with_the_weights_of_an_undisturbed_one(
    spawn: Spawner, tmp_path: Path
) -> None:
    """SIGTERM goes to one rank only: transformers' own checkpoint on a signal hangs then."""
    folder = tmp_path / "run"
    first = job(spawn, SCRIPT, folder, "--ft-preempted-exit-code=75")
    first.wait_for(lambda: complete(folder, 15), 90)
    rank(first, 1).kill()
    first.wait_for(r"the training resumes from .*checkpoint-\d+", 90)
    before = newest(folder)
    first.wait_for(lambda: newest(folder) > before, 90)  # it trains again
    rank(first, 1).send_signal(signal.SIGTERM)
    assert first.wait(90) == 75, first.output()[-3000:]
    assert "Received signal 15, initiating graceful stop" in first.output()
    assert "Preemption detected, saving checkpoint and exiting" in first.output()
    stopped = newest(folder)
    assert complete(folder, stopped) and not (tmp_path / "run.flag").exists()

    second = job(spawn, SCRIPT, folder, then_undisturbed=True)
    assert second.wait(90) == 0, second.output()[-3000:]
    assert f"the training resumes from {folder}/checkpoint-{stopped}" in second.output()
    assert (tmp_path / "run.flag").exists()
    assert same_weights(folder, "final/model.safetensors")


@pytest.mark.variant
def test_an_accelerate_loop_that_is_preempted_ends_with_the_weights_of_an_undisturbed_one(
    spawn: Spawner, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = job(spawn, LOOP, folder, "--ft-preempted-exit-code=75")
    first.wait_for(lambda: (folder / "step-15").exists(), 60)
    launcher = psutil.Process(first.pid)
    for process in [*launcher.children(recursive=True), launcher]:  # as Slurm does: everybody at once
        process.send_signal(signal.SIGTERM)
    assert first.wait(60) == 75, first.output()[-3000:]
    assert "preempted: the checkpoint of step" in first.output()
    second = job(spawn, LOOP, folder, then_undisturbed=True)
    assert second.wait(60) == 0, second.output()[-3000:]
    assert f"the training resumes from {folder}/step-" in second.output()
    assert same_weights(folder, f"step-{STEPS}/model.safetensors")


def newest(folder: Path) -> int:
    return max((int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*")), default=0)
