"""`HoldfastCallback`: each of its three parts works, and none is there twice. Its job is in `test_faults`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import HoldfastCallback, PreemptionCallback
from holdfast.straggler import Detector

from .conftest import TinyModel, saving


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
