"""A job resumes with another number of ranks, in mid-epoch and between two epochs: each sample once an epoch.

What a step trains over all ranks is the same before and after; the size of a rank's batch follows from that. Only rank
0 writes a checkpoint here, so the place in the data from which all ranks resume is rank 0's.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.processes import Spawned, Spawner

from .programs.resized import EPOCHS, SAMPLES, STEP_SAMPLES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "lightning"
PROGRAM = Path(__file__).parent / "programs" / "resized.py"
STEPS = SAMPLES // STEP_SAMPLES
"""Of an epoch."""


def start(spawn: Spawner, framework: str, folder: Path, ranks: int, **env: str) -> Spawned:
    if importlib.util.find_spec(framework) is None or importlib.util.find_spec("sklearn") is None:
        pytest.skip(f"{framework} is not installed")
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", f"--nproc-per-node={ranks}"]
    return spawn(
        [*launcher, f"--ft-run-dir={folder / 'run'}", str(PROGRAM), framework, str(folder)],
        env={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES), **env},
    )


def trained(folder: Path) -> list[tuple[int, int]]:
    """The step and the number of each sample that was trained, by any rank."""
    lines = [line.split() for path in folder.glob("trained-*") for line in path.read_text().splitlines()]
    return [(int(step), int(sample)) for step, *samples in lines for sample in samples]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_each_sample_is_trained_once_an_epoch(
    framework: str, before: int, after: int, spawn: Spawner, tmp_path: Path
) -> None:
    job = start(spawn, framework, tmp_path, before)
    job.wait_for(lambda: any(step == 5 for step, _ in trained(tmp_path)))
    assert job.stop(signal.SIGTERM) == 0, job.output()
    last = max(step for step, _ in trained(tmp_path))
    assert 5 <= last < STEPS - 1, "it was stopped in mid-epoch"
    again = start(spawn, framework, tmp_path, after)
    assert again.wait(120) == 0, again.output()
    assert f"ends after step {EPOCHS * STEPS}" in again.out()
    assert_each_sample_once_an_epoch(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "saved", "after"),
    [
        ("lightning", "epoch", 2),
        ("transformers", "epoch", 2),
        pytest.param("lightning", "validation", 1, marks=pytest.mark.variant),
        pytest.param("lightning", "step", 1, marks=pytest.mark.variant),
        pytest.param("transformers", "step", 1, marks=pytest.mark.variant),
    ],
)
def test_kill_between_two_epochs_skips_and_repeats_nothing(
    framework: str, saved: str, after: int, spawn: Spawner, tmp_path: Path
) -> None:
    """Two ranks are killed when the checkpoint of an epoch's last step is saved and the next epoch has no step."""
    job = start(spawn, framework, tmp_path, 2, SAVED=saved, KILL="1")
    assert job.wait(120) == 128 + signal.SIGKILL, job.output()
    assert max(step for step, _ in trained(tmp_path)) == STEPS - 1
    again = start(spawn, framework, tmp_path, after, SAVED=saved)
    assert again.wait(120) == 0, again.output()
    assert f"ends after step {EPOCHS * STEPS}" in again.out()
    assert_each_sample_once_an_epoch(tmp_path)


def assert_each_sample_once_an_epoch(folder: Path) -> None:
    each = Counter((step // STEPS, sample) for step, sample in trained(folder))
    assert len(each) == EPOCHS * SAMPLES and set(each.values()) == {1}
    of_step = Counter(step for step, _ in trained(folder))
    assert of_step == dict.fromkeys(range(EPOCHS * STEPS), STEP_SAMPLES)
