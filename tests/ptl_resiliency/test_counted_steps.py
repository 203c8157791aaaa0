"""A fit whose program says nothing is counted by its optimizer's steps; one with a callback of ours is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback
from tests.counting import Arm

from .conftest import BATCHES, TinyModel


def test_a_fit_without_callbacks(arm: Arm, ranked: Board, quiet: dict[str, Any]) -> None:
    arm()
    pl.Trainer(max_epochs=1, accumulate_grad_batches=2, **quiet).fit(TinyModel())
    seen = ranked.snapshot()
    assert (seen.step, seen.heartbeat_count, seen.counted) == (BATCHES // 2, BATCHES // 2, True)


def test_a_fit_with_a_callback_that_follows_one_without(
    arm: Arm, ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    arm()
    pl.Trainer(max_steps=4, **quiet).fit(TinyModel())
    assert ranked.snapshot().step == 4
    callback = FaultToleranceCallback(False, True, exp_dir=tmp_path / "state")
    pl.Trainer(max_epochs=1, callbacks=[callback], **quiet).fit(TinyModel())
    seen = ranked.snapshot()
    # Training: start, batches, end; validation: start, 2 batches, end; the end.
    assert seen.heartbeat_count == BATCHES + 2 + 4 + 1
    assert (seen.step, seen.finished, seen.counted) == (BATCHES, True, False)
    pl.Trainer(max_steps=4, **quiet).fit(TinyModel())
    assert ranked.snapshot().heartbeat_count == seen.heartbeat_count
