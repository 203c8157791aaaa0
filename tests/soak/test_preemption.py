"""A Lightning job of two ranks that is preempted at twenty random moments, and ends as if nothing had been."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.processes import Spawner
from tests.ptl_resiliency.test_preemption_jobs import CEILING, LAUNCHER, Job, agreed

TIMES = 20
EPOCHS = 2000
"""More than are trained in all starts but the last one."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_random_moments(spawn: Spawner, tmp_path: Path) -> None:
    chance = random.Random(4)
    job = Job(spawn, tmp_path / "job", LAUNCHER, epochs=EPOCHS)
    steps = []
    for _ in range(TIMES):
        process = job.start("--step=0.003", f"--workers={chance.choice((0, 2))}")
        process.wait_for(r"^STEP \d+", CEILING)
        time.sleep(chance.uniform(0.0, 1.5))  # the moment
        process.send_signal(signal.SIGTERM)
        assert process.wait(CEILING) == 0, process.output()[-3000:]
        before = job.step
        job.stopped(process.output())
        assert agreed(job.run_dir) == [job.step - before]
        steps.append(job.step)
    assert job.lengths(0) == job.lengths(1)
    assert steps == sorted(set(steps))
    job.epochs = reference_epochs = steps[-1] // 6 + 2
    job.completed()
    reference = Job(spawn, tmp_path / "reference", LAUNCHER, epochs=reference_epochs)
    reference.completed()
    assert torch.equal(job.weights(), reference.weights())
    assert [job.trained(rank) for rank in (0, 1)] == [reference.trained(rank) for rank in (0, 1)]
