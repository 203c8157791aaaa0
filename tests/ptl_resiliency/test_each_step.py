"""What our callbacks do in each batch, none missed and none counted twice; and in evaluations by themselves."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist

from holdfast.callbacks.supervision import Supervision
from holdfast.fault_tolerance import RankMonitorClient
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
from tests.clients import Arm
from tests.processes import Spawner

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


# -- `HoldfastCallback`: each of its three parts works, and none is there twice; its job is in `test_jobs`


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


# -- `trainer.validate()` and `trainer.test()` by themselves are supervised


ROOT = Path(__file__).parents[2]
EVALUATING_JOB = Path(__file__).parent / "programs" / "evaluating_job.py"


@pytest.mark.slow
def test_a_hang_in_an_evaluation_by_itself_is_found(spawn: Spawner, tmp_path: Path) -> None:
    launcher = ["-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2", "--max-restarts=2"]
    limits = ["--ft-rank-heartbeat-timeout=8", "--ft-rank-section-timeouts=step:8"]
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TMPDIR": str(tmp_path)}
    command = [*launcher, *limits, f"--ft-run-dir={tmp_path / 'run'}", str(EVALUATING_JOB), str(tmp_path)]
    job = spawn([sys.executable, *command], env=env)
    assert job.wait(150) == 0, job.output()[-3000:]
    said = job.output()
    assert said.count("HANG: rank 1") == 2, said[-3000:]
    assert all(f"rank {rank} has done its {what}" in said for rank in (0, 1) for what in ("validate", "test"))


@pytest.mark.parametrize("kind", [FaultToleranceCallback, FaultToleranceSectionsCallback])
@pytest.mark.parametrize("what", ["validate", "test"])
def test_it_is_supervised_and_nothing_follows(
    kind: type[Any], what: str, ranked: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag"))
    callback = kind(True, True, exp_dir=tmp_path / "state")
    job = trainer(tmp_path, callback)
    for _ in range(2):
        before = ranked.snapshot()
        getattr(job, what)(TinyModel(), verbose=False)
        after = ranked.snapshot()
        if kind is FaultToleranceCallback:  # the start, 2 batches, the end
            assert after.heartbeat_count == before.heartbeat_count + 4
        else:  # setup, and 2 steps
            assert after.section_count == before.section_count + 3
        assert after.finished and not after.open_sections and not callback.is_initialized
    assert Supervision._current is None and "teardown" not in vars(job.strategy)
    assert not (tmp_path / "flag").exists() and not list((tmp_path / "state").iterdir())


def test_it_has_the_configured_limits_after_a_fit_with_learned_ones(ranked: Board, tmp_path: Path) -> None:
    """Its batches may take longer than all that a fit has seen."""
    heartbeat = {"initial": 20.0, "subsequent": 10.0, "were_calculated": True}
    (tmp_path / "_ft_state.json").write_text(json.dumps({"current_timeouts": {"heartbeat": heartbeat}}))
    callback = FaultToleranceCallback(False, True, exp_dir=tmp_path)
    seen: list[float | None] = []

    def look(trainer: Any, batch_idx: int) -> None:
        seen.append(ranked.snapshot().limits.subsequent)

    job = trainer(tmp_path, callback, max_steps=1, limit_val_batches=1)
    job.fit(TinyModel(on_step=look))
    job.validate(TinyModel(on_validation=look), verbose=False)
    assert seen == [10.0, 2700.0]


def test_an_error_in_it_ends_supervision(ranked: Board, tmp_path: Path) -> None:
    def fail(trainer: Any, batch_idx: int) -> None:
        raise OSError("broken")

    callbacks = [
        FaultToleranceCallback(exp_dir=tmp_path),
        FaultToleranceSectionsCallback(exp_dir=tmp_path, exc_handling_policy=pytest.fail),
    ]
    with pytest.raises(OSError, match="broken"):
        trainer(tmp_path, *callbacks).validate(TinyModel(on_validation=fail), verbose=False)
    snapshot = ranked.snapshot()
    assert snapshot.finished and not snapshot.open_sections and Supervision._current is None


def test_supervision_that_cannot_begin_ends_nothing(
    ranked: Board, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The program has a client of its own."""
    client = RankMonitorClient()
    client.init_workload_monitoring()
    job = trainer(tmp_path, FaultToleranceCallback(exp_dir=tmp_path))
    job.validate(TinyModel(), verbose=False)
    client.shutdown_workload_monitoring()
    assert sum("trainer.validate() is not supervised" in line for line in caplog.messages) == 1


def test_an_evaluation_of_one_rank_waits_for_no_other(ranked: Board, tmp_path: Path) -> None:
    """As after a fit, whose process group is still there."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    try:
        callbacks = [
            FaultToleranceCallback(exp_dir=tmp_path),
            FaultToleranceSectionsCallback(exp_dir=tmp_path),
        ]
        began = time.monotonic()
        trainer(tmp_path, *callbacks).validate(TinyModel(), verbose=False)
        assert time.monotonic() - began < 60 and ranked.snapshot().heartbeat_count == 4
    finally:
        dist.destroy_process_group()
