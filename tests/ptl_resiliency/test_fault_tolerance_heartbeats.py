"""Heartbeats of a fit, checkpoints that count, and what a step pays for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback

from .conftest import BATCHES, TinyModel, saving


def sections_callback(folder: Path, **more: Any) -> FaultToleranceSectionsCallback:
    return FaultToleranceSectionsCallback(False, True, exp_dir=folder / "state", **more)


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


@pytest.fixture
def timed() -> Iterator[Any]:
    """CPU time of a call in µs, the least of many tries: other processes share the machine."""

    def least(call: Any) -> float:
        best = float("inf")
        for _ in range(60):
            before = time.thread_time_ns()
            for _ in range(500):
                call()
            best = min(best, (time.thread_time_ns() - before) / 500 / 1000)
        return best

    yield least


def test_what_a_step_pays(ranked: Board, quiet: dict[str, Any], tmp_path: Path, timed: Any) -> None:
    """Bounds wide enough for a busy machine; the benchmark has the figures."""
    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]
    paid: dict[str, float] = {}

    class Measure(pl.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            # Between steps, as a step within a step opens nothing.
            strategy, count = trainer.strategy, trainer.fit_loop.epoch_loop.batch_progress.total
            pl_module.training_step = lambda: None
            plain = type(strategy).training_step.__get__(strategy)

            def batch(step: Any) -> Any:
                count.ready += 1
                return step()

            kept = count.ready
            paid["step"] = timed(lambda: batch(strategy.training_step)) - timed(lambda: batch(plain))
            count.ready = kept
            del pl_module.training_step

    pl.Trainer(max_steps=1, callbacks=[Measure(), *callbacks], **quiet).fit(TinyModel())
    print(paid)
    assert paid["step"] < 20
