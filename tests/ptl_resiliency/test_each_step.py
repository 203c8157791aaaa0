"""What our callbacks do in each batch: none is missed, and none counts twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from holdfast.fault_tolerance.board import Board
from holdfast.fault_tolerance.stop import page as P
from holdfast.fault_tolerance.stop.page import PageFile, page_path
from holdfast.fault_tolerance.stop.rules import batches_of
from holdfast.ptl_resiliency import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    PreemptionCallback,
    StragglerDetectionCallback,
)
from holdfast.straggler import Detector
from tests.counting import Arm

from .conftest import BATCHES, TinyModel

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def page(ranked: Board) -> Iterator[PageFile]:
    """That on which this rank and a launcher agree where to stop."""
    made = PageFile.create(page_path(ranked.path))
    yield made
    made.close()
    os.unlink(page_path(ranked.path))


def all_four(folder: Path, **straggler: Any) -> list[Any]:
    state = folder / "state"
    return [
        FaultToleranceCallback(False, True, exp_dir=state),
        FaultToleranceSectionsCallback(False, True, exp_dir=state),
        StragglerDetectionCallback(**{"report_time_interval": 300.0, **straggler}),
        PreemptionCallback(),
    ]


def test_a_batch_counts_once_however_often_the_optimizer_calls_the_step(
    ranked: Board, page: PageFile, quiet: dict[str, Any], tmp_path: Path
) -> None:
    calls: list[int] = []
    reports: list[int] = []

    class Searching(TinyModel):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), max_iter=3)

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            reports.append(Detector._session._interval._step)  # type: ignore[union-attr]

    callbacks = [*all_four(tmp_path, report_time_interval=1e-6), Look()]
    trainer = pl.Trainer(max_epochs=1, callbacks=callbacks, limit_val_batches=0, **quiet)
    trainer.fit(Searching(lambda _, batch_idx: calls.append(batch_idx)))
    snapshot = ranked.snapshot()
    assert len(calls) > BATCHES and snapshot.section_count == BATCHES + 1
    assert snapshot.heartbeat_count == BATCHES + 3  # those at the begin and the end of training, and the last
    assert reports == list(range(BATCHES)) and batches_of(page.words[P.POSITION]) == BATCHES


def test_a_proposal_is_answered_after_the_batch_in_which_it_is_seen(
    ranked: Board, page: PageFile, quiet: dict[str, Any], tmp_path: Path
) -> None:
    """The test plays the launcher: a place of that batch, committed at once."""
    seen: list[int] = []

    def on_step(trainer: Any, batch_idx: int) -> None:
        seen.append(batches_of(page.words[P.POSITION]))
        if batch_idx == 6:
            page.words[P.PLACES + 1] = page.words[P.POSITION] + 1
            page.words[P.NUMBER] = page.words[P.COMMITTED] = 1

    trainer = pl.Trainer(max_epochs=1, callbacks=all_four(tmp_path), limit_val_batches=0, **quiet)
    with pytest.raises(SystemExit) as stopped:
        trainer.fit(TinyModel(on_step))
    assert stopped.value.code == 0 and len(seen) == 7
    assert seen == list(range(len(seen)))
    assert page.words[P.ANSWER] == P.answer_word(1, True) and trainer.global_step == len(seen)


def test_each_alone_leaves_the_strategy_as_it_was(
    ranked: Board, page: PageFile, quiet: dict[str, Any], tmp_path: Path
) -> None:
    for callback in all_four(tmp_path):
        before = ranked.snapshot().heartbeat_count
        trainer = pl.Trainer(max_epochs=1, callbacks=[callback], limit_val_batches=0, **quiet)
        trainer.fit(TinyModel())
        left = set(vars(trainer.strategy)) | set(vars(trainer.strategy.checkpoint_io))
        assert not left & {
            "training_step",
            "save_checkpoint",
            "remove_checkpoint",
            "teardown",
            "process_dataloader",
        }
        beats = isinstance(callback, FaultToleranceCallback)
        assert ranked.snapshot().heartbeat_count == before + (BATCHES + 3 if beats else 0)


def test_a_subclass_with_a_hook_of_its_own_is_called_after_each_batch(
    ranked: Board, page: PageFile, quiet: dict[str, Any], tmp_path: Path
) -> None:
    class Own(StragglerDetectionCallback):
        batches = 0

        def on_train_batch_end(self, *args: Any) -> None:
            self.batches += 1
            super().on_train_batch_end(*args)
            assert Detector._session._interval._step == self.batches  # type: ignore[union-attr]

    own = Own()
    callbacks = [
        own,
        *(each for each in all_four(tmp_path) if not isinstance(each, StragglerDetectionCallback)),
    ]
    pl.Trainer(max_epochs=2, callbacks=callbacks, limit_val_batches=0, **quiet).fit(TinyModel())
    assert own.batches == 2 * BATCHES


# -- a fit whose program says nothing is counted by its optimizer's steps; one with a callback of ours is not


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
