"""Limits from job to job."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback

from .small import TinyModel, saving, trainer

KINDS = [FaultToleranceCallback, FaultToleranceSectionsCallback]
BOTH = pytest.mark.parametrize("kind", KINDS, ids=["heartbeats", "sections"])
PREFIX = "[FaultToleranceCallback@rank0] "


def fit(callbacks: list[Any], folder: Path, **arguments: Any) -> None:
    """A fit of 30 steps that saves every 5."""
    ckpt_path = arguments.pop("ckpt_path", None)
    saved = saving(folder / "saved")
    job = trainer(folder, *callbacks, saved, **{"max_steps": 30, **arguments})
    job.fit(TinyModel(), ckpt_path=ckpt_path)


def test_heartbeat_limits_of_one_job_bind_in_the_next(
    ranked: Board,
    checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "_ft_state.json"
    with caplog.at_level(logging.INFO, "nemo_logger.FaultToleranceCallback"):
        fit([FaultToleranceCallback(False, True, exp_dir=tmp_path)], tmp_path, ckpt_path=str(checkpoint))
        learned = json.loads(path.read_text())["current_timeouts"]["heartbeat"]
        first, caplog.records[:] = list(caplog.messages), []
        fit([FaultToleranceCallback(False, True, exp_dir=str(tmp_path))], tmp_path)
    assert json.loads(path.read_text()) == {"current_timeouts": {"heartbeat": learned}}  # nothing was loaded
    limits = ranked.snapshot().limits
    assert [limits.initial, limits.subsequent] == [learned["initial"], learned["subsequent"]]
    initial, subsequent = learned["initial"], learned["subsequent"]
    shown = f"heartbeat timeouts: initial {initial:.2f} s (learned), subsequent {subsequent:.2f} s"
    configured = "heartbeat timeouts: initial 3600.00 s, subsequent 2700.00 s"
    assert [line for line in first if "FaultTol" in line] == [
        f"{PREFIX}Fault tolerance dir: {tmp_path}",
        f"{PREFIX}Fault tolerance client initialized. Timeouts: {configured}",
        f"{PREFIX}Updating FT timeouts...",
        f"{PREFIX}Updated FT timeouts. New values: {shown} (learned)",
    ]
    assert [line for line in caplog.messages if "FaultTol" in line] == [
        f"{PREFIX}Fault tolerance dir: {tmp_path}",
        f"{PREFIX}Fault tolerance timeouts loaded: {shown} (learned)",
        f"{PREFIX}Fault tolerance client initialized. Timeouts: {shown} (learned)",
        f"{PREFIX}The FT timeouts are not updated: no checkpoint was loaded",
    ]


def test_what_is_said_while_section_limits_are_learned(
    ranked: Board,
    checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "nemo_logger.FaultToleranceCallback"):
        fit([FaultToleranceSectionsCallback(False, True, exp_dir=tmp_path)], tmp_path, max_steps=8)
    said = [line.removeprefix(PREFIX) for line in caplog.messages if PREFIX in line]
    assert [re.sub("section timeouts: .*", "…", line) for line in said] == [
        f"Fault tolerance dir: {tmp_path}",
        "Fault tolerance client initialized. Timeouts: …",
        # after the checkpoint of step 5
        "Can't update the setup section timeout until persistent checkpoint is loaded",
        "Need to see more training iterations to update the step section timeout",
        "Updating FT timeouts for: ['checkpointing'] update out-of-section: False",
        "Updated FT timeouts. New values: …",
        # the end
        "The out-of-section timeout won't be updated until all FT sections were seen",
        "Updating FT timeouts for: ['checkpointing'] update out-of-section: False",
        "Updated FT timeouts. New values: …",
    ]
    assert ranked.snapshot().limits.sections["setup"] == 600.0


@BOTH
def test_nothing_is_learned_or_loaded_unless_asked(
    kind: type[Any], ranked: Board, checkpoint: Path, tmp_path: Path
) -> None:
    limits = ranked.snapshot().limits
    state = {"current_timeouts": {"heartbeat": {"initial": 1e4, "subsequent": 1e4, "were_calculated": True}}}
    path = tmp_path / kind.TIMEOUTS_FILENAME
    path.write_text(json.dumps(state))
    fit([kind(False, False, exp_dir=tmp_path)], tmp_path, ckpt_path=str(checkpoint))
    assert ranked.snapshot().limits == limits and json.loads(path.read_text()) == state


@BOTH
@pytest.mark.parametrize("text", ["", "{", '{"current_timeouts": {"heartbeat": {"initial": -1}}}', "[]"])
def test_a_damaged_state_is_left_out(
    kind: type[Any],
    text: str,
    ranked: Board,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / kind.TIMEOUTS_FILENAME).write_text(text)
    trainer(tmp_path, kind(False, True, exp_dir=tmp_path), max_steps=1).fit(TinyModel())
    limits = ranked.snapshot().limits
    assert (limits.initial, limits.subsequent, limits.sections["setup"]) == (3600.0, 2700.0, 600.0)
    damaged = text in ("{", "[]") or ("initial" in text and kind is FaultToleranceCallback)
    assert bool([line for line in caplog.messages if "left out" in line]) == damaged


def test_a_state_of_nvrx_is_loaded(ranked: Board, tmp_path: Path) -> None:
    """As its documents give the format, with what a newer version might add."""
    heartbeat = {"initial": 1000.0, "subsequent": 500.0, "were_calculated": True, "since": "0.9"}
    section = {
        "section": {"setup": 700.0, "step": 90.0, "checkpointing": 80.0},
        "out_of_section": 60.0,
        "calculated_sections": ["setup", "step", "checkpointing"],
        "is_out_of_section_calculated": True,
    }
    (tmp_path / "_ft_state.json").write_text(
        json.dumps({"current_timeouts": {"heartbeat": heartbeat}, "v": 2})
    )
    (tmp_path / "_ft_state_.json").write_text(json.dumps({"current_timeouts": {"section": section}}))
    callbacks = [kind(False, True, exp_dir=tmp_path) for kind in KINDS]
    seen: list[Any] = []
    job = trainer(tmp_path, *callbacks, max_steps=1)
    job.fit(TinyModel(lambda trainer, batch_idx: seen.append(ranked.snapshot().limits)))
    (limits,) = seen
    assert (limits.initial, limits.subsequent, limits.out_of_section) == (1000.0, 500.0, 60.0)
    assert limits.sections == section["section"]
