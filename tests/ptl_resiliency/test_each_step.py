"""What our callbacks do in each batch: none is missed, and none counts twice."""

from __future__ import annotations

import os
import signal
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
    HoldfastCallback,
    PreemptionCallback,
    StragglerDetectionCallback,
)
from holdfast.straggler import Detector
from tests.counting import Arm

from .small import BATCHES, TinyModel, saving, trainer

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
    ranked: Board, page: PageFile, tmp_path: Path
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
    job = trainer(tmp_path, *callbacks, max_epochs=1, limit_val_batches=0)
    job.fit(Searching(lambda _, batch_idx: calls.append(batch_idx)))
    snapshot = ranked.snapshot()
    assert len(calls) > BATCHES and snapshot.section_count == BATCHES + 1
    assert snapshot.heartbeat_count == BATCHES + 3  # those at the begin and the end of training, and the last
    assert reports == list(range(BATCHES)) and batches_of(page.words[P.POSITION]) == BATCHES


def test_a_proposal_is_answered_after_the_batch_in_which_it_is_seen(
    ranked: Board, page: PageFile, tmp_path: Path
) -> None:
    """The test plays the launcher: a place of that batch, committed at once."""
    seen: list[int] = []

    def on_step(trainer: Any, batch_idx: int) -> None:
        seen.append(batches_of(page.words[P.POSITION]))
        if batch_idx == 6:
            page.words[P.PLACES + 1] = page.words[P.POSITION] + 1
            page.words[P.NUMBER] = page.words[P.COMMITTED] = 1

    job = trainer(tmp_path, *all_four(tmp_path), max_epochs=1, limit_val_batches=0)
    with pytest.raises(SystemExit) as stopped:
        job.fit(TinyModel(on_step))
    assert stopped.value.code == 0 and len(seen) == 7
    assert seen == list(range(len(seen)))
    assert page.words[P.ANSWER] == P.answer_word(1, True) and job.global_step == len(seen)


def test_a_subclass_with_a_hook_of_its_own_is_called_after_each_batch(
    ranked: Board, page: PageFile, tmp_path: Path
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
    trainer(tmp_path, *callbacks, max_epochs=2, limit_val_batches=0).fit(TinyModel())
    assert own.batches == 2 * BATCHES


# -- a fit whose program says nothing is counted by its optimizer's steps; one with a callback of ours is not


def test_a_fit_without_callbacks(arm: Arm, ranked: Board, tmp_path: Path) -> None:
    arm()
    trainer(tmp_path, max_epochs=1, accumulate_grad_batches=2).fit(TinyModel())
    seen = ranked.snapshot()
    assert (seen.step, seen.heartbeat_count, seen.counted) == (BATCHES // 2, BATCHES // 2, True)


def test_a_fit_with_a_callback_that_follows_one_without(arm: Arm, ranked: Board, tmp_path: Path) -> None:
    arm()
    trainer(tmp_path, max_steps=4).fit(TinyModel())
    assert ranked.snapshot().step == 4
    callback = FaultToleranceCallback(False, True, exp_dir=tmp_path / "state")
    trainer(tmp_path, callback, max_epochs=1).fit(TinyModel())
    seen = ranked.snapshot()
    # Training: start, batches, end; validation: start, 2 batches, end; the end.
    assert seen.heartbeat_count == BATCHES + 2 + 4 + 1
    assert (seen.step, seen.finished, seen.counted) == (BATCHES, True, False)
    trainer(tmp_path, max_steps=4).fit(TinyModel())
    assert ranked.snapshot().heartbeat_count == seen.heartbeat_count


# -- `HoldfastCallback`: each of its three parts works, and none is there twice; its job is in `test_faults`


def test_all_three_are_at_work(ranked: Board, tmp_path: Path) -> None:
    """Heartbeats, the detector, and a preemption that saves the step that it stops at."""
    detecting = []

    def on_step(trainer: Any, batch_idx: int) -> None:
        detecting.append(Detector.initialized)
        if batch_idx == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    job = trainer(tmp_path, HoldfastCallback(), saving(tmp_path, 100), max_epochs=1)
    with pytest.raises(SystemExit) as ended:
        job.fit(TinyModel(on_step))
    assert ended.value.code == 0
    assert (tmp_path / "last.ckpt").exists() and job.global_step == 5
    assert all(detecting) and not Detector.initialized
    assert ranked.snapshot().heartbeat_count >= 5


def test_two_fits_of_one_trainer(ranked: Board, tmp_path: Path) -> None:
    job = trainer(tmp_path, HoldfastCallback(), max_epochs=1)
    job.fit(TinyModel())
    job.fit_loop.max_epochs = 2
    job.fit(TinyModel())
    assert job.global_step == 40 and ranked.snapshot().finished


def test_one_given_twice_is_refused(ranked: Board, tmp_path: Path) -> None:
    job = trainer(tmp_path, HoldfastCallback(), PreemptionCallback(), max_epochs=1)
    with pytest.raises(RuntimeError, match="HoldfastCallback has a PreemptionCallback, and the trainer has"):
        job.fit(TinyModel())
