"""Sections of a fit: open while what they name runs, and no longer."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceSectionsCallback

from .conftest import TinyModel, saving


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
