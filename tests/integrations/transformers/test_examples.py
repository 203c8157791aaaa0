"""The example under ft_launcher on two ranks, and without it: killed, preempted, resumed, with the same weights."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.processes import Spawned, Spawner, wait_until

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "examples" / "transformers" / "train.py"
LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
STEPS = 60
SCHEDULE = [f"--steps={STEPS}", "--save-every=15"]

pytestmark = pytest.mark.slow


def job(spawn: Spawner, folder: Path, *options: str) -> Spawned:
    launcher = [*LAUNCHER, "--nproc-per-node=2", "--max-restarts=1", f"--ft-run-dir={folder}-run", *options]
    env = {**QUIET, "FAULT_TOL_FINISHED_FLAG_FILE": f"{folder}.flag"}
    return spawn([*launcher, str(SCRIPT), f"--dir={folder}", *SCHEDULE], env=env)


def rank(launcher: Spawned, number: int) -> psutil.Process:
    """The process that is this rank now."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        if process.environ().get("RANK") == str(number) and str(SCRIPT) in process.cmdline():
            return process
    raise AssertionError(f"there is no rank {number}")


def complete(folder: Path, step: int) -> bool:
    place = folder / f"checkpoint-{step}"
    return (place / "trainer_state.json").exists() and not (place / "checkpoint-is-incomplete.txt").exists()


def same_model(one: Path, other: Path) -> bool:
    mine, theirs = (load_file(folder / "final" / "model.safetensors") for folder in (one, other))
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_killed_and_a_preempted_job_end_with_the_weights_of_an_undisturbed_one(
    spawn: Spawner, tmp_path: Path
) -> None:
    """SIGTERM goes to one rank only: transformers' own checkpoint on a signal hangs then."""
    folder = tmp_path / "disturbed"
    undisturbed = job(spawn, tmp_path / "undisturbed")
    first = job(spawn, folder, "--ft-preempted-exit-code=75")
    first.wait_for(lambda: complete(folder, 15), 90)
    rank(first, 1).kill()
    first.wait_for(r"the training goes on from .*checkpoint-(15|30)", 90)
    before = int(wait_until(lambda: newest(folder)))
    first.wait_for(lambda: newest(folder) > before, 90)  # trained on after the restart
    rank(first, 1).send_signal(signal.SIGTERM)
    assert first.wait(90) == 75, first.output()[-3000:]
    assert first.output().count("Received signal 15, initiating graceful stop") >= 1
    assert "Preemption detected, saving checkpoint and exiting" in first.output()
    stopped = newest(folder)
    assert complete(folder, stopped) and not (tmp_path / "disturbed.flag").exists()

    second = job(spawn, folder)
    assert second.wait(90) == 0, second.output()[-3000:]
    assert f"the training goes on from {folder}/checkpoint-{stopped}" in second.output()
    assert (tmp_path / "disturbed.flag").exists()
    assert undisturbed.wait(90) == 0
    assert same_model(folder, tmp_path / "undisturbed")


def newest(folder: Path) -> int:
    return max((int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*")), default=0)


def test_without_a_launcher_it_says_what_to_run_and_preemption_works(spawn: Spawner, tmp_path: Path) -> None:
    folder = tmp_path / "alone"
    command = [sys.executable, str(SCRIPT), f"--dir={folder}", *SCHEDULE]
    refused = spawn(command, env=QUIET)
    alone = spawn([*command, "--no-supervision", "--steps=100000"], env=QUIET)
    alone.wait_for(lambda: complete(folder, 15), 60)
    alone.send_signal(signal.SIGTERM)
    assert alone.wait(30) == 0, alone.output()[-3000:]
    assert complete(folder, newest(folder))
    assert refused.wait(30) == 1
    assert "FaultToleranceCallback needs ft_launcher" in refused.err()
    assert "Run `ft_launcher --nproc-per-node=N train.py`" in refused.err()
