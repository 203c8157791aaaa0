"""The state file and the finished flag: whole, atomic, tolerant."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from holdfast.callbacks.completion import create_flag
from holdfast.fault_tolerance.timeouts import kept_timeouts
from holdfast.prefixed_log import Prefixed

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
