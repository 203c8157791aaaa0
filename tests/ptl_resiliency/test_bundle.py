"""`HoldfastCallback`: each of its three parts works, also in jobs of two ranks, and none is there twice."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import HoldfastCallback, PreemptionCallback
from holdfast.straggler import Detector
from tests.processes import Spawned, Spawner

from .conftest import TinyModel, saving

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "bundle_job.py"


def test_all_three_are_at_work(ranked: Board, quiet: dict[str, Any], tmp_path: Path) -> None:
    """Heartbeats, the detector, and a preemption that saves the step that it stops at."""
    detecting = []

    def on_step(trainer: Any, batch_idx: int) -> None:
        detecting.append(Detector.initialized)
        if batch_idx == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    arguments = {**quiet, "enable_checkpointing": True}
    trainer = pl.Trainer(callbacks=[HoldfastCallback(), saving(tmp_path, 100)], max_epochs=1, **arguments)
    with pytest.raises(SystemExit) as ended:
        trainer.fit(TinyModel(on_step))
    assert ended.value.code == 0
    assert (tmp_path / "last.ckpt").exists() and trainer.global_step == 5
    assert all(detecting) and not Detector.initialized
    assert ranked.snapshot().heartbeat_count >= 5


def test_two_fits_of_one_trainer(ranked: Board, quiet: dict[str, Any]) -> None:
    trainer = pl.Trainer(callbacks=[HoldfastCallback()], max_epochs=1, **quiet)
    trainer.fit(TinyModel())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(TinyModel())
    assert trainer.global_step == 40 and ranked.snapshot().finished


def test_one_given_twice_is_refused(ranked: Board, quiet: dict[str, Any]) -> None:
    trainer = pl.Trainer(callbacks=[HoldfastCallback(), PreemptionCallback()], max_epochs=1, **quiet)
    with pytest.raises(RuntimeError, match="HoldfastCallback has a PreemptionCallback, and the trainer has"):
        trainer.fit(TinyModel())


def start(spawn: Spawner, folder: Path, ranks: int, *program: str) -> Spawned:
    launcher = ["-m", "holdfast.fault_tolerance.launcher", f"--nproc-per-node={ranks}", "--max-restarts=1"]
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TMPDIR": str(folder)}
    env["FAULT_TOL_FINISHED_FLAG_FILE"] = str(folder / "finished")
    limits = ["--ft-rank-heartbeat-timeout=4", f"--ft-run-dir={folder / 'run'}"]
    return spawn([sys.executable, *launcher, *limits, str(PROGRAM), str(folder), *program], env=env)


@pytest.mark.slow
def test_a_hang_is_found_and_the_training_finishes(spawn: Spawner, tmp_path: Path) -> None:
    job = start(spawn, tmp_path, 2, "0.02", "3", "hang")
    assert job.wait(90) == 0, job.output()[-3000:]
    said = job.output()
    assert len(re.findall(r"HANG: rank 1", said)) == 1
    assert all(f"rank {rank} ends at 30" in said for rank in (0, 1))
    assert (tmp_path / "finished").exists()


@pytest.mark.slow
def test_a_preempted_job_saves_one_step_on_both_ranks(spawn: Spawner, tmp_path: Path) -> None:
    job = start(spawn, tmp_path, 2, "0.05", "100")
    job.wait_for("STEP 12", 60)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 0, job.output()[-3000:]
    steps = re.findall(r"rank \d ends at (\d+)", job.output())
    saved = torch.load(tmp_path / "saved" / "last.ckpt", weights_only=False)["global_step"]
    assert steps == [str(saved)] * 2
    assert not (tmp_path / "finished").exists()


@pytest.mark.slow
def test_the_slow_rank_of_three_is_named(spawn: Spawner, tmp_path: Path) -> None:
    job = start(spawn, tmp_path, 3, "0.004", "30", "slow")
    assert job.wait(120) == 0, job.output()[-3000:]
    said = job.output()
    assert "Section training_step is slower on some ranks. Affected ranks: {StragglerId(rank=1, node=" in said
    assert set(re.findall(r"STRAGGLER: rank (\d)", said)) == {"1"}, said[-3000:]
