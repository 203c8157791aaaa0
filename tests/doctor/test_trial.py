"""The trial of warm start: real imports in a real zygote, of which nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from holdfast.doctor.trial import judge


def doctor(*words: str | Path) -> tuple[int, str, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_a_script_is_tried_and_not_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import yaml\nopen('it-ran', 'w').close()\n")
    code, told, complaints = doctor("--json", "--trial", "--nproc-per-node", "2", script)
    (tried,) = (each for each in json.loads(told)["findings"] if each["check"] == "trial")
    assert tried["verdict"] == "ok" and tried["what"].startswith("1 packages imported in ")
    assert not (tmp_path / "it-ran").exists() and not complaints and code in (0, 1)


def test_a_trial_needs_a_script() -> None:
    assert doctor("--trial")[0] == 2


def test_what_is_refused_is_told() -> None:
    found = judge(3, {"pack": "pack.x: it starts a thread"}, 2.0, 0.02, [])
    assert found.verdict == "note"
    assert found.what == (
        "3 packages imported in 2.0 s, a rank forked in 20 ms; each rank imports by itself pack "
        "(pack.x: it starts a thread)"
    )
    assert judge(3, {}, 2.0, None, ["torch cannot be imported ahead: it starts a thread"]).what.startswith(
        "torch"
    )
