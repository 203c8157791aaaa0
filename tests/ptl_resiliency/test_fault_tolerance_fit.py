"""What a supervised fit tells the monitor, and that it ends: heartbeats, sections, checkpoints, faults."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback
from holdfast.ptl_resiliency.patches import Patches
from holdfast.ptl_resiliency.supervision import Supervision

from .conftest import BATCHES, TinyModel, saving


def heartbeat_callback(folder: Path, **more: Any) -> FaultToleranceCallback:
    return FaultToleranceCallback(False, True, exp_dir=folder / "state", **more)


def sections_callback(folder: Path, **more: Any) -> FaultToleranceSectionsCallback:
    return FaultToleranceSectionsCallback(False, True, exp_dir=folder / "state", **more)


class Look(pl.Callback):
    """Which sections are open at each moment of a fit."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def look(self, moment: str) -> None:
        self.seen.append((moment, tuple(section.name for section in self._board.snapshot().open_sections)))

    def on_fit_start(self, *_: Any) -> None:
        self.look("fit")

    def on_sanity_check_start(self, *_: Any) -> None:
        self.look("sanity")

    def on_train_start(self, *_: Any) -> None:
        self.look("train")

    def on_train_batch_end(self, *_: Any) -> None:
        self.look("batch end")

    def on_save_checkpoint(self, *_: Any) -> None:
        self.look("dump")


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


def test_sections_are_open_while_what_they_name_runs(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    look = Look(ranked)
    inside: set[tuple[str, ...]] = set()

    def note(trainer: Any, batch_idx: int) -> None:
        inside.add(tuple(section.name for section in ranked.snapshot().open_sections))

    class Noting(TorchCheckpointIO):
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            look.look("write")
            super().save_checkpoint(*args, **kwargs)

        def remove_checkpoint(self, path: Any) -> None:
            look.look("remove")
            super().remove_checkpoint(path)

    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[sections_callback(tmp_path), look, saving(tmp_path / "saved")],
        plugins=[Noting()],
        **{**quiet, "enable_checkpointing": True, "num_sanity_val_steps": 2},
    )
    trainer.fit(TinyModel(note, note))
    assert inside == {("step",)}
    assert set(look.seen) == {
        ("fit", ("setup",)),
        ("sanity", ("setup",)),
        ("train", ()),  # the sanity check was the first batch
        ("batch end", ()),
        ("dump", ()),
        ("write", ("checkpointing",)),
        ("remove", ("checkpointing",)),
    }
    assert ranked.snapshot().checkpoints == sum(moment in ("write", "remove") for moment, _ in look.seen)


def test_without_a_sanity_check_the_setup_ends_with_the_first_training_batch(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    look = Look(ranked)
    pl.Trainer(max_steps=2, callbacks=[look, sections_callback(tmp_path)], **quiet).fit(TinyModel())
    assert look.seen == [("fit", ("setup",)), ("train", ("setup",)), ("batch end", ()), ("batch end", ())]


class Broken(TorchCheckpointIO):
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")


@pytest.mark.parametrize("where", ["step", "validation", "checkpointing"])
def test_a_call_that_raises_closes_its_section(
    where: str, ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    def fail(trainer: Any, batch_idx: int) -> None:
        raise OSError("broken")

    class After(pl.Callback):
        def on_exception(self, *_: Any) -> None:
            seen.append(ranked.snapshot().open_sections)

    seen: list[Any] = []
    model = TinyModel(fail if where == "step" else None, fail if where == "validation" else None)
    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[After(), sections_callback(tmp_path), saving(tmp_path / "saved")],
        plugins=[Broken()] if where == "checkpointing" else [],
        **{**quiet, "enable_checkpointing": True},
    )
    with pytest.raises(OSError):
        trainer.fit(model)
    assert seen == [()]
    assert ranked.snapshot().finished


def test_a_checkpoint_within_a_step_is_in_both_sections(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    look = Look(ranked)

    def save(trainer: Any, batch_idx: int) -> None:
        trainer.save_checkpoint(tmp_path / "now.ckpt")
        look.look("after")

    trainer = pl.Trainer(max_steps=1, callbacks=[sections_callback(tmp_path), look], **quiet)
    trainer.fit(TinyModel(save))
    assert ("dump", ("step",)) in look.seen and ("after", ("step",)) in look.seen
    assert ranked.snapshot().checkpoints == 1


def test_asynchronous_checkpoints_teach_nothing_and_that_is_said_once(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        callback = sections_callback(tmp_path)
        trainer = pl.Trainer(
            max_epochs=1,
            callbacks=[callback, saving(tmp_path / "saved")],
            plugins=[AsyncCheckpointIO()],
            **{**quiet, "enable_checkpointing": True},
        )
        trainer.fit(TinyModel())
    said = [line for line in caplog.messages if "async checkpointing" in line]
    assert said == [
        "[FaultToleranceCallback@rank0] Can't update the checkpointing section timeout with async checkpointing"
    ]
    assert ranked.snapshot().limits.sections["checkpointing"] == 420.0
    assert not [name for name in os.listdir(tmp_path / "saved") if not name.endswith(".ckpt")]


def test_an_io_that_finalises_is_asynchronous(ranked: Board, quiet: dict[str, Any], tmp_path: Path) -> None:
    look = Look(ranked)

    class Finalising(TorchCheckpointIO):
        def maybe_finalize_save_checkpoint(self) -> None:
            look.look("finalise")

    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[sections_callback(tmp_path), saving(tmp_path / "saved")],
        plugins=[Finalising()],
        **{**quiet, "enable_checkpointing": True},
    )
    model = TinyModel(
        lambda trainer, batch_idx: trainer.strategy.checkpoint_io.maybe_finalize_save_checkpoint()
    )
    trainer.fit(model)
    assert set(look.seen) == {("finalise", ("step", "checkpointing"))}
    assert ranked.snapshot().limits.sections["checkpointing"] == 420.0


def test_both_callbacks_share_supervision_over_fits_and_trainers(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]
    seen: list[bool] = []
    model = TinyModel(lambda trainer, batch_idx: seen.append(all(each.is_initialized for each in callbacks)))
    trainer = pl.Trainer(max_steps=3, callbacks=callbacks, **quiet)
    trainer.fit(model)
    assert Supervision._current is None
    first = ranked.snapshot()
    trainer.fit_loop.epoch_loop.max_steps = 5
    trainer.fit(model)
    second = ranked.snapshot()
    pl.Trainer(max_steps=2, callbacks=callbacks[::-1], **quiet).fit(model)
    third = ranked.snapshot()
    assert all(seen) and len(seen) == 7
    assert first.step == 3 and second.step == 5 and third.step == 2
    assert first.heartbeat_count < second.heartbeat_count < third.heartbeat_count
    assert third.finished and third.open_sections == ()


def test_a_fit_after_one_that_failed(ranked: Board, quiet: dict[str, Any], tmp_path: Path) -> None:
    class Rude(pl.Callback):
        """Then Lightning ends nothing."""

        def on_exception(self, *_: Any) -> None:
            raise ValueError("in on_exception")

    def fail(trainer: Any, batch_idx: int) -> None:
        raise OSError("broken")

    callback = heartbeat_callback(tmp_path)
    trainer = pl.Trainer(max_steps=3, callbacks=[Rude(), callback], **quiet)
    with pytest.raises(ValueError, match="in on_exception"):
        trainer.fit(TinyModel(fail))
    assert callback.is_initialized
    pl.Trainer(max_steps=3, callbacks=[callback], **quiet).fit(TinyModel())
    assert Supervision._current is None and ranked.snapshot().step == 3


def test_a_program_that_ends_supervision_itself_trains_on(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]

    def end(trainer: Any, batch_idx: int) -> None:
        assert callbacks[0]._fit is not None
        callbacks[0]._fit.client.shutdown_workload_monitoring()

    trainer = pl.Trainer(max_steps=5, callbacks=callbacks, **quiet)
    trainer.fit(TinyModel(end))
    assert trainer.global_step == 5
    assert len([line for line in caplog.messages if "supervision has ended before the training" in line]) == 1


def test_copies_supervise_nothing(ranked: Board, quiet: dict[str, Any], tmp_path: Path) -> None:
    copies: list[Any] = []

    def duplicate(trainer: Any, batch_idx: int) -> None:
        for callback in callbacks:
            copies.append(copy.deepcopy(callback))

    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]
    pl.Trainer(max_steps=1, callbacks=callbacks, **quiet).fit(TinyModel(duplicate))
    for callback in callbacks:
        del callback.log, callback.log_dict  # Lightning's, of the model
        copies.append(pickle.loads(pickle.dumps(callback)))
    assert len(copies) == 4 and not any(each.is_initialized for each in copies)
    for each in copies:
        pl.Trainer(max_steps=1, callbacks=[each], **quiet).fit(TinyModel())


@pytest.mark.parametrize("kind", [FaultToleranceCallback, FaultToleranceSectionsCallback])
def test_a_simulated_fault_is_armed_by_the_fit_and_called_off_by_its_end(
    kind: type[Any], ranked: Board, quiet: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    armed: list[bool] = []

    def look(trainer: Any, batch_idx: int) -> None:
        armed.append(any(thread.name.startswith("holdfast-fault") for thread in threading.enumerate()))

    params = {"fault_type": "rank_killed", "base_delay": 600.0, "rank_to_fail": 0}
    callback = kind(False, True, params, exp_dir=tmp_path / "state")
    pl.Trainer(max_steps=1, callbacks=[callback], **quiet).fit(TinyModel(look))
    assert armed == [True]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-fault")]
    text = "\n####\nSimulating fault: rank_killed; rank to fail: 0\n#####\n"
    assert all(text in stream for stream in capfd.readouterr())
    with pytest.raises(ValueError, match="Failed to parse simulated fault params"):
        kind(False, True, {"fault_type": "nonsense"})


def test_patches_may_be_undone_in_any_order() -> None:
    class Thing:
        def act(self) -> str:
            return "act"

    def around(word: str) -> Any:
        return lambda original, args, kwargs: f"{word} {original(*args, **kwargs)}"

    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]):
        thing, patches = Thing(), [Patches() for _ in range(3)]
        for number, each in enumerate(patches):
            each.wrap(thing, "act", around(str(number)))
        assert thing.act() == "2 1 0 act"
        for number in order:
            patches[number].undo()
        assert thing.act() == "act" and vars(thing) == {}


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
            strategy = trainer.strategy
            pl_module.training_step = lambda: None
            plain = type(strategy).training_step.__get__(strategy)
            paid["edges"] = timed(strategy.training_step) - timed(plain)
            paid["beat"] = timed(lambda: callbacks[0].after_batch(trainer, pl_module))
            del pl_module.training_step

    pl.Trainer(max_steps=1, callbacks=[Measure(), *callbacks], **quiet).fit(TinyModel())
    print(paid)
    assert paid["beat"] < 6 and paid["edges"] < 9
