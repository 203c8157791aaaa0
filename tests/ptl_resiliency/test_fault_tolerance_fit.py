"""Supervision begins with a fit and ends with it, however it ends; sections are open while what they name runs."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from holdfast.callbacks.supervision import Supervision
from holdfast.fault_tolerance.board import Board
from holdfast.patches import Patches
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback

from .small import BATCHES, TinyModel, saving, trainer


def heartbeat_callback(folder: Path, **more: Any) -> FaultToleranceCallback:
    return FaultToleranceCallback(False, True, exp_dir=folder / "state", **more)


def sections_callback(folder: Path, **more: Any) -> FaultToleranceSectionsCallback:
    return FaultToleranceSectionsCallback(False, True, exp_dir=folder / "state", **more)


def test_both_callbacks_share_supervision_over_fits_and_trainers(ranked: Board, tmp_path: Path) -> None:
    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]
    seen: list[bool] = []
    model = TinyModel(lambda trainer, batch_idx: seen.append(all(each.is_initialized for each in callbacks)))
    job = trainer(tmp_path, *callbacks, max_steps=3)
    job.fit(model)
    assert Supervision._current is None
    first = ranked.snapshot()
    job.fit_loop.epoch_loop.max_steps = 5
    job.fit(model)
    second = ranked.snapshot()
    trainer(tmp_path, *callbacks[::-1], max_steps=2).fit(model)
    third = ranked.snapshot()
    assert all(seen) and len(seen) == 7
    assert first.step == 3 and second.step == 5 and third.step == 2
    assert first.heartbeat_count < second.heartbeat_count < third.heartbeat_count
    assert third.finished and third.open_sections == ()


def test_a_fit_after_one_that_failed(ranked: Board, tmp_path: Path) -> None:
    class Rude(pl.Callback):
        """Then Lightning ends nothing."""

        def on_exception(self, *_: Any) -> None:
            raise ValueError("in on_exception")

    def fail(trainer: Any, batch_idx: int) -> None:
        raise OSError("broken")

    callback = heartbeat_callback(tmp_path)
    job = trainer(tmp_path, Rude(), callback, max_steps=3)
    with pytest.raises(ValueError, match="in on_exception"):
        job.fit(TinyModel(fail))
    assert callback.is_initialized
    trainer(tmp_path, callback, max_steps=3).fit(TinyModel())
    assert Supervision._current is None and ranked.snapshot().step == 3


def test_a_program_that_ends_supervision_itself_trains_on(
    ranked: Board, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]

    def end(trainer: Any, batch_idx: int) -> None:
        assert callbacks[0]._fit is not None
        callbacks[0]._fit.client.shutdown_workload_monitoring()

    job = trainer(tmp_path, *callbacks, saving(tmp_path / "saved"), max_steps=20)
    job.fit(TinyModel(end))
    assert job.global_step == 20
    warned = [record.getMessage() for record in caplog.records if "@rank0]" in record.getMessage()]
    warned = [line for line in warned if " timeouts" not in line or "stay as they are" in line]
    assert ["supervision has ended before the training" in line for line in warned].count(True) == 1, warned
    assert ["is not supervised" in line for line in warned].count(True) == 1 and len(warned) == 2, warned


def test_copies_supervise_nothing(ranked: Board, tmp_path: Path) -> None:
    copies: list[Any] = []

    def duplicate(trainer: Any, batch_idx: int) -> None:
        for callback in callbacks:
            copies.append(copy.deepcopy(callback))

    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]
    trainer(tmp_path, *callbacks, max_steps=1).fit(TinyModel(duplicate))
    for callback in callbacks:
        del callback.log, callback.log_dict  # type: ignore[attr-defined]  # Lightning's, of the model
        copies.append(pickle.loads(pickle.dumps(callback)))
    assert len(copies) == 4 and not any(each.is_initialized for each in copies)
    for each in copies:
        trainer(tmp_path, each, max_steps=1).fit(TinyModel())


@pytest.mark.parametrize("kind", [FaultToleranceCallback, FaultToleranceSectionsCallback])
def test_a_simulated_fault_is_armed_by_the_fit_and_called_off_by_its_end(
    kind: type[Any], ranked: Board, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    armed: list[bool] = []

    def look(trainer: Any, batch_idx: int) -> None:
        armed.append(any(thread.name.startswith("holdfast-fault") for thread in threading.enumerate()))

    params = {"fault_type": "rank_killed", "base_delay": 600.0, "rank_to_fail": 0}
    callback = kind(False, True, params, exp_dir=tmp_path / "state")
    trainer(tmp_path, callback, max_steps=1).fit(TinyModel(look))
    assert armed == [True]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-fault")]
    assert not any("Simulating fault" in stream for stream in capfd.readouterr())  # it has not happened
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


def test_what_is_saved_after_a_failure_is_whole_and_supervised(ranked: Board, tmp_path: Path) -> None:
    """Lightning asks other callbacks for a last checkpoint after ours were called for the failure."""
    during: list[tuple[list[str], list[str]]] = []

    class Watched(TorchCheckpointIO):
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            super().save_checkpoint(*args, **kwargs)
            sections = [section.name for section in ranked.snapshot().open_sections]
            during.append((os.listdir(tmp_path / "saved"), sections))

    def fail(trainer: Any, batch_idx: int) -> None:
        raise OSError("broken")

    (tmp_path / "saved").mkdir()
    last = pl.callbacks.OnExceptionCheckpoint(tmp_path / "saved")
    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path), last]
    job = trainer(tmp_path, *callbacks, max_steps=3, plugins=[Watched()])
    with pytest.raises(OSError, match="broken"):
        job.fit(TinyModel(fail))
    assert during == [([".on_exception.ckpt.partial"], ["checkpointing"])]
    assert os.listdir(tmp_path / "saved") == ["on_exception.ckpt"]
    assert ranked.snapshot().finished and Supervision._current is None


def test_a_setup_that_fails_elsewhere_ends_supervision(ranked: Board, tmp_path: Path) -> None:
    class Failing(TinyModel):
        def setup(self, stage: str) -> None:
            raise OSError("no data")

    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]
    with pytest.raises(OSError, match="no data"):
        trainer(tmp_path, *callbacks, max_steps=3).fit(Failing())
    snapshot = ranked.snapshot()
    assert snapshot.finished and not snapshot.open_sections and Supervision._current is None


# -- heartbeats of a fit, and checkpoints that count


def test_each_batch_is_a_heartbeat_with_its_step(ranked: Board, tmp_path: Path) -> None:
    steps: list[int] = []
    model = TinyModel(lambda trainer, batch_idx: steps.append(ranked.snapshot().step))
    callback = heartbeat_callback(tmp_path)
    job = trainer(tmp_path, callback, max_epochs=1, accumulate_grad_batches=2)
    job.fit(model)
    snapshot = ranked.snapshot()
    assert snapshot.step == job.global_step == BATCHES // 2
    assert steps[1:] == [batch // 2 for batch in range(1, BATCHES)]
    # Training: start, batches, end; validation: start, 2 batches, end; the end.
    assert snapshot.heartbeat_count == BATCHES + 2 + 4 + 1
    assert snapshot.finished and snapshot.section_count == 0


def test_a_manual_optimisation_has_steps_too(ranked: Board, tmp_path: Path) -> None:
    class Manual(TinyModel):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.manual_backward(self._loss(batch))
            optimizer.step()  # type: ignore[union-attr]

    trainer(tmp_path, heartbeat_callback(tmp_path), max_steps=7).fit(Manual())
    assert ranked.snapshot().step == 7


def test_checkpoints_count_when_they_are_complete(ranked: Board, tmp_path: Path) -> None:
    counts: list[tuple[int, int]] = []

    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            super().save_checkpoint(checkpoint, path, storage_options)
            counts.append((ranked.snapshot().checkpoints, len(list((tmp_path / "saved").glob("*.ckpt")))))

    for plugin in (Slow(), AsyncCheckpointIO(Slow())):
        before = ranked.snapshot().checkpoints
        job = trainer(
            tmp_path, heartbeat_callback(tmp_path), saving(tmp_path / "saved"), max_steps=10, plugins=[plugin]
        )
        counts.clear()
        job.fit(TinyModel())
        saves = len(counts)
        assert saves >= 2 and ranked.snapshot().checkpoints == before + saves
        assert [count for count, _ in counts] == list(range(before, before + saves))


# -- sections of a fit: open while what they name runs, and no longer


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


def test_sections_are_open_while_what_they_name_runs(ranked: Board, tmp_path: Path) -> None:
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

    job = trainer(
        tmp_path,
        sections_callback(tmp_path),
        look,
        saving(tmp_path / "saved"),
        max_epochs=1,
        plugins=[Noting()],
        num_sanity_val_steps=2,
    )
    job.fit(TinyModel(note, note))
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
    ranked: Board, tmp_path: Path
) -> None:
    look = Look(ranked)
    trainer(tmp_path, look, sections_callback(tmp_path), max_steps=2).fit(TinyModel())
    assert look.seen == [("fit", ("setup",)), ("train", ("setup",)), ("batch end", ()), ("batch end", ())]


class Broken(TorchCheckpointIO):
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")


@pytest.mark.parametrize("where", ["step", "validation", "checkpointing"])
def test_a_call_that_raises_closes_its_section(where: str, ranked: Board, tmp_path: Path) -> None:
    def fail(trainer: Any, batch_idx: int) -> None:
        raise OSError("broken")

    class After(pl.Callback):
        def on_exception(self, *_: Any) -> None:
            seen.append(ranked.snapshot().open_sections)

    seen: list[Any] = []
    model = TinyModel(fail if where == "step" else None, fail if where == "validation" else None)
    job = trainer(
        tmp_path,
        After(),
        sections_callback(tmp_path),
        saving(tmp_path / "saved"),
        max_epochs=1,
        plugins=[Broken()] if where == "checkpointing" else [],
    )
    with pytest.raises(OSError):
        job.fit(model)
    assert seen == [()]
    assert ranked.snapshot().finished


def test_a_checkpoint_within_a_step_is_in_both_sections(ranked: Board, tmp_path: Path) -> None:
    look = Look(ranked)

    def save(trainer: Any, batch_idx: int) -> None:
        trainer.save_checkpoint(tmp_path / "now.ckpt")
        look.look("after")

    job = trainer(tmp_path, sections_callback(tmp_path), look, max_steps=1)
    job.fit(TinyModel(save))
    assert ("dump", ("step",)) in look.seen and ("after", ("step",)) in look.seen
    assert ranked.snapshot().checkpoints == 1


def test_asynchronous_checkpoints_teach_nothing_and_that_is_said_once(
    ranked: Board, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        callback = sections_callback(tmp_path)
        job = trainer(
            tmp_path, callback, saving(tmp_path / "saved"), max_epochs=1, plugins=[AsyncCheckpointIO()]
        )
        job.fit(TinyModel())
    said = [line for line in caplog.messages if "async checkpointing" in line]
    assert said == [
        "[FaultToleranceCallback@rank0] Can't update the checkpointing section timeout with async checkpointing"
    ]
    assert ranked.snapshot().limits.sections["checkpointing"] == 420.0
    assert not [name for name in os.listdir(tmp_path / "saved") if not name.endswith(".ckpt")]


def test_an_io_that_finalises_is_asynchronous(ranked: Board, tmp_path: Path) -> None:
    look = Look(ranked)

    class Finalising(TorchCheckpointIO):
        def maybe_finalize_save_checkpoint(self) -> None:
            look.look("finalise")

    job = trainer(
        tmp_path,
        sections_callback(tmp_path),
        saving(tmp_path / "saved"),
        max_epochs=1,
        plugins=[Finalising()],
    )
    model = TinyModel(
        lambda trainer, batch_idx: trainer.strategy.checkpoint_io.maybe_finalize_save_checkpoint()
    )
    job.fit(model)
    assert set(look.seen) == {("finalise", ("step", "checkpointing"))}
    assert ranked.snapshot().limits.sections["checkpointing"] == 420.0
