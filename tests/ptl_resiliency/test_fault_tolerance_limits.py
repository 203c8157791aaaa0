"""Limits from job to job: when they may be learned, that two ranks agree, and the files that keep them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from holdfast import side_group
from holdfast.callbacks.completion import create_flag, why_complete
from holdfast.fault_tolerance.board import Board
from holdfast.fault_tolerance.timeouts import kept_timeouts
from holdfast.fault_tolerance.timeouts.kept_timeouts import KeptTimeouts, wanted_by_all
from holdfast.fault_tolerance.timeouts.learned_timeouts import HEARTBEAT
from holdfast.fault_tolerance.timeouts.learning_conditions import (
    ASYNC_NOTE,
    CHECKPOINTING,
    CHECKPOINTING_NOTE,
    EVALUATION_NOTE,
    FAILURE_NOTE,
    OUT_NOTE,
    SETUP,
    SETUP_NOTE,
    STEP,
    STEP_NOTE,
    HeartbeatRules,
    SectionRules,
    is_clean_stop,
)
from holdfast.prefixed_log import Prefixed
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback
from holdfast.side_group import CollectiveFailed, SideGroup
from tests.processes import Spawner

from .small import TinyModel, saving, trainer

KINDS: list[type[Any]] = [FaultToleranceCallback, FaultToleranceSectionsCallback]
PREFIX = "[FaultToleranceCallback@rank0] "


def fit(callbacks: list[Any], folder: Path, **arguments: Any) -> None:
    """A fit of 30 steps that saves every 5."""
    ckpt_path = arguments.pop("ckpt_path", None)
    saved = saving(folder / "saved")
    job = trainer(folder, *callbacks, saved, **{"max_steps": 30, **arguments})
    job.fit(TinyModel(), ckpt_path=ckpt_path)


def test_heartbeat_limits_of_one_job_bind_in_the_next(
    ranked: Board, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
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
    ranked: Board, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
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


def test_no_limit_that_an_evaluation_could_exceed_is_learned_before_one(
    ranked: Board, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "nemo_logger.FaultToleranceCallback"):
        callbacks = [kind(False, True, exp_dir=tmp_path) for kind in KINDS]
        # The sanity check is no evaluation: of two batches.
        rare = {"check_val_every_n_epoch": 9, "num_sanity_val_steps": 2}
        fit(callbacks, tmp_path, ckpt_path=str(checkpoint), **rare)
    assert not (tmp_path / "_ft_state.json").exists()
    learned = json.loads((tmp_path / "_ft_state_.json").read_text())["current_timeouts"]["section"]
    assert learned["calculated_sections"] == ["checkpointing", "setup"]
    assert f"{PREFIX}{EVALUATION_NOTE}" in caplog.messages
    why = "no evaluation was seen yet, and this training has them"
    assert f"{PREFIX}The FT timeouts are not updated: {why}" in caplog.messages


def test_nothing_is_learned_or_loaded_unless_asked(ranked: Board, checkpoint: Path, tmp_path: Path) -> None:
    limits = ranked.snapshot().limits
    state = {"current_timeouts": {"heartbeat": {"initial": 1e4, "subsequent": 1e4, "were_calculated": True}}}
    for kind in KINDS:
        (tmp_path / kind.TIMEOUTS_FILENAME).write_text(json.dumps(state))
    fit([kind(False, False, exp_dir=tmp_path) for kind in KINDS], tmp_path, ckpt_path=str(checkpoint))
    assert ranked.snapshot().limits == limits
    assert all(json.loads((tmp_path / kind.TIMEOUTS_FILENAME).read_text()) == state for kind in KINDS)


@pytest.mark.parametrize("text", ["", "{", '{"current_timeouts": {"heartbeat": {"initial": -1}}}', "[]"])
def test_a_damaged_state_is_left_out(
    text: str, ranked: Board, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in KINDS:
        (tmp_path / kind.TIMEOUTS_FILENAME).write_text(text)
    callbacks = [kind(False, True, exp_dir=tmp_path) for kind in KINDS]
    trainer(tmp_path, *callbacks, max_steps=1).fit(TinyModel())
    limits = ranked.snapshot().limits
    assert (limits.initial, limits.subsequent, limits.sections["setup"]) == (3600.0, 2700.0, 600.0)
    damaged = {"": 0, "{": 2, "[]": 2}.get(text, 1)
    assert sum("left out" in line for line in caplog.messages) == damaged


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


# -- when limits may be learned, and when a training is finished: decisions from values


EVENTS = st.lists(st.sampled_from(["batch", "beat", "save", "load", "evaluate", "fail"]), max_size=40)


def heartbeats(events: str, *, evaluates: bool = False) -> HeartbeatRules:
    """The rules after b(atch), h(eartbeat), s(ave), l(oad), e(valuate), f(ailure)."""
    rules = HeartbeatRules(evaluation_to_come=evaluates)
    for event in events:
        if event == "b":
            rules.iterations += 1
        elif event == "h":
            rules.other_beats += 1
        elif event == "s":
            rules.saved()
        elif event == "l":
            rules.loaded = True
        elif event == "e":
            rules.evaluation_to_come = False
        else:
            rules.failed = True
    return rules


def test_why_heartbeat_limits_are_not_learned() -> None:
    assert heartbeats("bbbb").why_not() == "no checkpoint was loaded"
    assert heartbeats("lbsh").why_not() == "1 of at least 2 training iterations"
    assert heartbeats("lbb").why_not() == "no checkpoint was saved between two heartbeats"
    assert heartbeats("lbsbf").why_not() == "the training failed"
    rules = heartbeats("lbsb")
    rules.learned = True
    assert rules.why_not() == "they were learned already"


@given(EVENTS, st.booleans())
def test_heartbeat_rules_against_their_definition(events: list[str], evaluates: bool) -> None:
    rules = heartbeats("".join({"beat": "h"}.get(event, event[0]) for event in events), evaluates=evaluates)
    beating = [event in ("batch", "beat") for event in events]
    saved_between = any(
        event == "save" and any(beating[:at]) and any(beating[at:]) for at, event in enumerate(events)
    )
    assert rules.may_learn == (
        events.count("batch") >= 2
        and "load" in events
        and "fail" not in events
        and saved_between
        and (not evaluates or "evaluate" in events)
    )


@given(EVENTS, st.booleans(), st.booleans(), st.integers(0, 20), st.booleans())
def test_section_rules_against_their_definition(
    events: list[str], asynchronous: bool, evaluates: bool, more: int, final: bool
) -> None:
    rules = SectionRules(asynchronous=asynchronous, evaluation_to_come=evaluates)
    for event in events:
        rules.iterations += event == "batch"
        rules.loaded |= event == "load"
        rules.failed |= event == "fail"
        rules.evaluation_to_come &= event != "evaluate"
        if event == "save":
            rules.saved()
    rules.iterations += more
    assert rules.due == ("save" in events)
    chosen = rules.selection(final=final)
    assert not rules.due
    if "fail" in events:
        assert not chosen and chosen.notes == (FAILURE_NOTE,)
        return
    assert (SETUP in chosen.sections) == ("load" in events) != (SETUP_NOTE in chosen.notes)
    unseen = evaluates and "evaluate" not in events
    assert (rules.iterations > 16) != (STEP_NOTE in chosen.notes)
    assert (EVALUATION_NOTE in chosen.notes) == (rules.iterations > 16 and unseen)
    assert (STEP in chosen.sections) == (rules.iterations > 16 and not unseen)
    assert (CHECKPOINTING in chosen.sections) == ("save" in events and not asynchronous)
    assert (CHECKPOINTING_NOTE in chosen.notes) == ("save" not in events and not asynchronous)
    assert (ASYNC_NOTE in chosen.notes) == asynchronous
    complete = {SETUP, STEP} <= set(chosen.sections) and "save" in events
    assert chosen.out_of_section == (final and complete)
    assert (OUT_NOTE in chosen.notes) == (final and not complete)


@pytest.mark.parametrize(
    ("exception", "clean"),
    [
        (SystemExit(), True),
        (SystemExit(0), True),
        (SystemExit(1), False),
        (SystemExit("text"), False),
        (KeyboardInterrupt(), False),
        (RuntimeError(), False),
    ],
)
def test_only_a_successful_exit_is_a_clean_stop(exception: BaseException, clean: bool) -> None:
    assert is_clean_stop(exception) is clean


@pytest.mark.parametrize(
    ("iterations", "ending", "why"),
    [
        (50, {"global_step": 100, "max_steps": 100}, "max_steps=100 reached"),
        (50, {"global_step": 99, "max_steps": 100}, ""),
        (50, {"global_step": 0, "max_steps": 0}, ""),
        (50, {"epoch": 3, "max_epochs": 3}, "max_epochs=3 reached"),
        (50, {"epoch": 3, "max_epochs": None}, ""),
        (50, {"epoch": 3, "max_epochs": 3, "asked_to_stop": True, "in_mid_epoch": True}, ""),
        (50, {"epoch": 3, "max_epochs": 3, "asked_to_stop": True}, "max_epochs=3 reached"),
        (50, {"asked_to_stop": True, "early_stopping": True}, "early stopping"),
        (50, {"asked_to_stop": True}, ""),
        (2, {}, ""),
        (1, {}, "nothing more to do: this job ended after 1 training iterations"),
        (0, {}, "nothing more to do: this job ended after 0 training iterations"),
    ],
)
def test_when_a_training_is_finished(iterations: int, ending: dict[str, Any], why: str) -> None:
    assert why_complete(iterations, **ending) == why


# -- the state file and the finished flag: whole, atomic, tolerant


LEARNED = {"initial": 900.0, "subsequent": 90.0, "were_calculated": True}


def test_the_oldest_form_is_read() -> None:
    oldest = {"current_timeouts": LEARNED}
    assert kept_timeouts.parse(json.dumps(oldest), "heartbeat") == {
        "current_timeouts": {"heartbeat": LEARNED}
    }


@pytest.mark.parametrize("text", ["{", "[1]", "null", '{"current_timeouts": 3}', "[" * 100_000])
def test_what_is_no_state_says_so(text: str) -> None:
    with pytest.raises(kept_timeouts.Damaged):
        kept_timeouts.parse(text, "heartbeat")


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "endless").write_bytes(b" " * (kept_timeouts.LARGEST + 1))
    for name, why in {"binary": "is no text", "endless": "more than", ".": "cannot be read"}.items():
        with pytest.raises(kept_timeouts.Damaged, match=why):
            kept_timeouts.read(tmp_path / name)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = {"current_timeouts": {"heartbeat": LEARNED}}
    kept_timeouts.write(path, state)
    (tmp_path / ".state.json.partial").mkdir()
    with pytest.raises(OSError):
        kept_timeouts.write(path, {"current_timeouts": {}})
    assert json.loads(path.read_text()) == state


def test_the_flag_is_made_once_and_an_error_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Prefixed(logging.getLogger("test"), 3)
    for _ in range(2):
        create_flag(tmp_path / "flag", log)
    assert (tmp_path / "flag").read_bytes() == b"" and not caplog.messages
    create_flag(tmp_path / "missing" / "flag", log)
    assert not (tmp_path / "missing").exists()
    assert caplog.messages == [
        f"[FaultToleranceCallback@rank3] the finished flag {tmp_path}/missing/flag cannot be created: No such file or "
        "directory. An auto-resume loop will start a further job"
    ]


# -- two ranks agree on learning, or one does not come


PROGRAM = Path(__file__).resolve().parent / "programs" / "agreeing.py"


@pytest.mark.slow
def test_ranks_that_agree_and_ranks_that_do_not_come(spawn: Spawner, tmp_path: Path) -> None:
    ranks = [spawn.python(PROGRAM, str(rank), str(tmp_path)) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0], "\n".join(rank.output() for rank in ranks)
    first, second = (json.loads(rank.out()) for rank in ranks)
    for told in (first, second):
        assert told["late"] == "limits"
        assert (told["text"], told["nothing"], told["agreed"]) == ("rank 0 says é", "", [True, False, False])
    assert first["alone"] == first["again"] == first["left"] == [False]
    assert 2 <= first["seconds"] < 30 and first["beats"] > 2  # once: the second would wait for 30
    assert first["calculated"] is False and first["seconds after leaving"] < 60
    said = (
        r"@rank0\] the timeouts stay .*: not every rank answered \(not all ranks have come, after \d+\.\d s: "
    )
    assert re.search(said, ranks[0].err()), ranks[0].err()


@pytest.fixture
def forsaken() -> Iterator[None]:
    """This process is rank 1 of two, and there is no other; its group can be set up without."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=2)
    yield
    dist.destroy_process_group()


def test_a_group_that_cannot_be_made_is_said_once_and_ends_nothing(
    forsaken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(side_group, "AS_IN_THE_TRAINING", 0.2)
    log = Prefixed(logging.getLogger("test_logger"), 1)
    side = SideGroup(0.1)
    assert side.process_group is not None and side.rank == 1  # not taken for a process that is alone
    assert "no group of the ranks' own could be made" in caplog.messages[-1]
    assert wanted_by_all(side, [True], log) == wanted_by_all(side, [True], log) == [False]
    assert len(caplog.messages) == 1
    with pytest.raises(CollectiveFailed, match="could be made"):
        side.maximum([1.0])
    assert KeptTimeouts(tmp_path / "state.json", HEARTBEAT, side, log).text == ""
    side.close()
    side.close()
    assert side.process_group is None
