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

from .small import TinyModel, saving, trainer


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
