"""A fixed sample of the corpus of faults: real jobs, real faults, and the verdicts compared with their labels.

The whole corpus is `make faults`. Does not cover: the scoring, which is tested without jobs in tests/benchmarks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.faults.corpus import choose
from benchmarks.faults.run import HOLDFAST, ROOT, Campaign
from benchmarks.faults.score import scored
from tests.processes import Spawner, wait_until

SAMPLE = (
    "kill_9/collective",
    "lock/step",
    "stop/collective",
    "storage/checkpoint",
    "worker_sleeps/step",
    "slow_once/step",
)


@pytest.mark.slow
@pytest.mark.timeout(240)  # half a minute on a quiet machine
def test_the_sample(tmp_path: Path) -> None:
    sample = choose(SAMPLE)
    assert len(sample) == len(SAMPLE)
    campaign = Campaign(tmp_path, 2, threading.Event())
    wrong = []
    for scenario, facts in campaign.run(HOLDFAST, sample):
        assert facts is not None
        score = scored(scenario, facts)
        if not score.right:
            wrong.append(f"{score}\n{facts.log[-3000:]}")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
def test_an_interrupt_ends_everything_and_says_so(spawn: Spawner, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--only", "sleep/step", "--keep", tmp_path]
    paths = f"{ROOT}:{ROOT / 'src'}"
    process = spawn(command, env={"PYTHONPATH": paths}, cwd=tmp_path)
    note = tmp_path / "holdfast" / "sleep-step"
    wait_until(lambda: list(note.glob("happens-*")), what="the fault")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert "interrupted; the page is as it was" in process.err()


def test_a_name_that_does_not_exist_is_one_line(spawn: Spawner, tmp_path: Path) -> None:
    paths = f"{ROOT}:{ROOT / 'src'}"
    command = [sys.executable, "-m", "benchmarks.faults", "--only", "slep"]
    process = spawn(command, env={"PYTHONPATH": paths}, cwd=tmp_path)
    assert process.wait() == 1
    assert process.err() == "faults: there is no fault named slep; --list shows all\n"
