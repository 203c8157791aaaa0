"""When limits may be learned, and when a training is finished: decisions from values."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.callbacks.completion import create_flag, why_complete
from holdfast.fault_tolerance.timeouts import kept_timeouts
from holdfast.fault_tolerance.timeouts.learning_conditions import (
    ASYNC_NOTE,
    CHECKPOINTING,
    CHECKPOINTING_NOTE,
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

EVENTS = st.lists(st.sampled_from(["batch", "beat", "save", "load", "fail"]), max_size=40)


def heartbeats(events: str) -> HeartbeatRules:
    """The rules after b(atch), h(eartbeat), s(ave), l(oad), f(ailure)."""
    rules = HeartbeatRules()
    for event in events:
        if event == "b":
            rules.iterations += 1
        elif event == "h":
            rules.other_beats += 1
        elif event == "s":
            rules.saved()
        elif event == "l":
            rules.loaded = True
        else:
            rules.failed = True
    return rules


def test_heartbeat_limits_need_a_load_a_save_between_heartbeats_and_two_iterations() -> None:
    assert heartbeats("lbbsh").may_learn
    assert heartbeats("lbsb").may_learn
    assert heartbeats("bbbb").why_not() == "no checkpoint was loaded"
    assert heartbeats("lbsh").why_not() == "1 of at least 2 training iterations"
    assert heartbeats("lbb").why_not() == "no checkpoint was saved between two heartbeats"
    assert not heartbeats("lsbb").may_learn  # none before
    assert not heartbeats("lbbs").may_learn  # none after
    assert heartbeats("lsbbsb").may_learn  # a later save has both
    assert heartbeats("lbsbf").why_not() == "the training failed"
    rules = heartbeats("lbsb")
    rules.learned = True
    assert rules.why_not() == "they were learned already"


@given(EVENTS)
def test_heartbeat_rules_against_their_definition(events: list[str]) -> None:
    rules = heartbeats("".join({"beat": "h"}.get(event, event[0]) for event in events))
    beating = [event in ("batch", "beat") for event in events]
    saved_between = any(
        event == "save" and any(beating[:at]) and any(beating[at:]) for at, event in enumerate(events)
    )
    assert rules.may_learn == (
        events.count("batch") >= 2 and "load" in events and "fail" not in events and saved_between
    )


@given(EVENTS, st.booleans(), st.integers(0, 20), st.booleans())
def test_section_rules_against_their_definition(
    events: list[str], asynchronous: bool, more: int, final: bool
) -> None:
    rules = SectionRules(asynchronous=asynchronous)
    for event in events:
        rules.iterations += event == "batch"
        rules.loaded |= event == "load"
        rules.failed |= event == "fail"
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
    assert (STEP in chosen.sections) == (rules.iterations > 16) != (STEP_NOTE in chosen.notes)
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


HEARTBEAT = {"initial": 900.0, "subsequent": 90.0, "were_calculated": True}
SECTION = {
    "section": {"setup": 600.0, "step": 30.0},
    "out_of_section": None,
    "calculated_sections": ["step"],
    "is_out_of_section_calculated": False,
}
STATE = {"current_timeouts": {"heartbeat": HEARTBEAT, "section": SECTION}}


def test_a_file_has_one_part(tmp_path: Path) -> None:
    path = tmp_path / "_ft_state.json"
    assert kept_timeouts.read(path) == ""
    kept_timeouts.write(path, kept_timeouts.only(STATE, "heartbeat"))
    assert json.loads(path.read_text()) == {"current_timeouts": {"heartbeat": HEARTBEAT}}
    assert kept_timeouts.parse(kept_timeouts.read(path), "heartbeat") == {
        "current_timeouts": {"heartbeat": HEARTBEAT}
    }
    assert kept_timeouts.parse(kept_timeouts.read(path), "section") == {"current_timeouts": {}}
    assert os.listdir(tmp_path) == [path.name]


def test_unknown_keys_and_the_oldest_form_are_read() -> None:
    newer = {
        "version": 3,
        "current_timeouts": {"heartbeat": {**HEARTBEAT, "of": "a newer version"}, "more": 1},
    }
    assert (
        kept_timeouts.parse(json.dumps(newer), "heartbeat")["current_timeouts"]["heartbeat"]["initial"]
        == 900.0
    )
    oldest = {"current_timeouts": HEARTBEAT}
    assert kept_timeouts.parse(json.dumps(oldest), "heartbeat") == {
        "current_timeouts": {"heartbeat": HEARTBEAT}
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
    kept_timeouts.write(path, STATE)
    (tmp_path / ".state.json.partial").mkdir()
    with pytest.raises(OSError):
        kept_timeouts.write(path, {"current_timeouts": {}})
    assert json.loads(path.read_text()) == STATE


def test_the_flag_is_made_once_and_an_error_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Prefixed(logging.getLogger("test"), 3)
    assert create_flag(tmp_path / "flag", log) and create_flag(tmp_path / "flag", log)
    assert (tmp_path / "flag").read_bytes() == b"" and not caplog.messages
    assert not create_flag(tmp_path / "missing" / "flag", log)
    assert caplog.messages == [
        f"[FaultToleranceCallback@rank3] the finished flag {tmp_path}/missing/flag cannot be created: No such file or "
        "directory. An auto-resume loop will start a further job"
    ]
