"""Hangs, crashes and a preemption of a Lightning training: found, restarted, resumed, and the result is the same.

All faults of a job come one after another, one in each cycle; after the last one the job is preempted, and the next job
finishes the training.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from tests.processes import Spawned, Spawner
from tests.ptl_resiliency.small import IS_2_4

pytestmark = pytest.mark.skipif(
    IS_2_4,
    reason="after a resume Lightning 2.4 trains a batch again and validates at other steps: the faults do not happen",
)
PROGRAM = Path(__file__).parent / "programs" / "faulty_job.py"
LIMITS = ("--ft-rank-section-timeouts=setup:60,step:2,checkpointing:2", "--ft-rank-heartbeat-timeout=2.5")

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
            str(PROGRAM),
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
    assert undisturbed.wait(60) == 0, undisturbed.err()[-3000:]
    disturbed = folder / "disturbed"
    job = start(spawn, disturbed, faults, str(len(faults)))
    assert job.wait(60 + 15 * len(faults)) == 0, job.err()[-3000:]
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
    assert again.wait(60) == 0, again.err()[-3000:]
    assert f"rank 0 cycle 0 from {stopped}\n" in again.out() and (disturbed / "finished").exists()
    expected = torch.load(folder / "undisturbed" / "weights.pt")
    found = torch.load(disturbed / "weights.pt")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_each_kind_of_fault_is_survived(spawn: Spawner, tmp_path: Path) -> None:
    survives(spawn, tmp_path, ESSENTIAL)


@pytest.mark.variant
@pytest.mark.timeout(600)
def test_each_kind_of_fault_in_each_place_is_survived(spawn: Spawner, tmp_path: Path) -> None:
    survives(spawn, tmp_path, FAULTS)
