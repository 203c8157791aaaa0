"""Heartbeats of a fit, and checkpoints that count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback

from .conftest import BATCHES, TinyModel, saving


def heartbeat_callback(folder: Path, **more: Any) -> FaultToleranceCallback:
    return FaultToleranceCallback(False, True, exp_dir=folder / "state", **more)


def test_each_batch_is_a_heartbeat_with_its_step(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    steps: list[int] = []
    model = TinyModel(lambda trainer, batch_idx: steps.append(ranked.snapshot().step))
    callback = heartbeat_callback(tmp_path)
    trainer = pl.Trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=[callback], **quiet)
    trainer.fit(model)
    snapshot = ranked.snapshot()
    assert snapshot.step == trainer.global_step == BATCHES // 2
    assert steps[1:] == [batch // 2 for batch in range(1, BATCHES)]
    # Training: start, batches, end; validation: start, 2 batches, end; the end.
    assert snapshot.heartbeat_count == BATCHES + 2 + 4 + 1
    assert snapshot.finished and snapshot.section_count == 0


def test_a_manual_optimisation_has_steps_too(ranked: Board, quiet: dict[str, Any], tmp_path: Path) -> None:
    class Manual(TinyModel):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.manual_backward(self._loss(batch))
            optimizer.step()  # type: ignore[union-attr]

    pl.Trainer(max_steps=7, callbacks=[heartbeat_callback(tmp_path)], **quiet).fit(Manual())
    assert ranked.snapshot().step == 7


def test_checkpoints_count_when_they_are_complete(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    counts: list[tuple[int, int]] = []

    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            super().save_checkpoint(checkpoint, path, storage_options)
            counts.append((ranked.snapshot().checkpoints, len(list((tmp_path / "saved").glob("*.ckpt")))))

    for plugin in (Slow(), AsyncCheckpointIO(Slow())):
        before = ranked.snapshot().checkpoints
        trainer = pl.Trainer(
            max_steps=10,
            callbacks=[heartbeat_callback(tmp_path), saving(tmp_path / "saved")],
            plugins=[plugin],
            **{**quiet, "enable_checkpointing": True},
        )
        counts.clear()
        trainer.fit(TinyModel())
        saves = len(counts)
        assert saves >= 2 and ranked.snapshot().checkpoints == before + saves
        assert [count for count, _ in counts] == list(range(before, before + saves))
