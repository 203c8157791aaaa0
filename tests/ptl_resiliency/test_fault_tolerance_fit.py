"""Supervision begins with a fit and ends with it, however many there are and however they end."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.plugins.io import TorchCheckpointIO

from holdfast.callbacks.supervision import Supervision
from holdfast.fault_tolerance.board import Board
from holdfast.patches import Patches
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback

from .conftest import TinyModel


def heartbeat_callback(folder: Path, **more: Any) -> FaultToleranceCallback:
    return FaultToleranceCallback(False, True, exp_dir=folder / "state", **more)


def sections_callback(folder: Path, **more: Any) -> FaultToleranceSectionsCallback:
    return FaultToleranceSectionsCallback(False, True, exp_dir=folder / "state", **more)


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
        del callback.log, callback.log_dict  # type: ignore[attr-defined]  # Lightning's, of the model
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


def test_what_is_saved_after_a_failure_is_whole_and_supervised(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
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
    arguments = {**quiet, "enable_checkpointing": True}
    trainer = pl.Trainer(max_steps=3, callbacks=callbacks, plugins=[Watched()], **arguments)
    with pytest.raises(OSError, match="broken"):
        trainer.fit(TinyModel(fail))
    assert during == [([".on_exception.ckpt.partial"], ["checkpointing"])]
    assert os.listdir(tmp_path / "saved") == ["on_exception.ckpt"]
    assert ranked.snapshot().finished and Supervision._current is None


def test_a_setup_that_fails_elsewhere_ends_supervision(
    ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    class Failing(TinyModel):
        def setup(self, stage: str) -> None:
            raise OSError("no data")

    callbacks = [heartbeat_callback(tmp_path), sections_callback(tmp_path)]
    with pytest.raises(OSError, match="no data"):
        pl.Trainer(max_steps=3, callbacks=callbacks, **quiet).fit(Failing())
    snapshot = ranked.snapshot()
    assert snapshot.finished and not snapshot.open_sections and Supervision._current is None
