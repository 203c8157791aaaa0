"""docs/auto-resume.md does what it says: its program is run as it stands there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from holdfast.autoresume import chain, command
from holdfast.autoresume.outcome import Kind
from holdfast.autoresume.policy import State
from holdfast.autoresume.run_dir import FLAG_VARIABLE
from tests.autoresume.conftest import HOLDFAST
from tests.processes import Spawner

PAGE = Path(__file__).resolve().parents[2] / "docs" / "auto-resume.md"


def block(title: str) -> str:
    found = re.search(
        rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, f"no block {title!r}"
    return found[1]


@pytest.mark.slow
def test_the_page_s_program(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block("train.py"))
    tool = [*HOLDFAST, "autoresume", "--run-dir", "run", "--backoff", "0", "--"]
    # The launcher that belongs to this source and this interpreter.
    (launcher := tmp_path / "ft_launcher").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m holdfast.fault_tolerance.launcher "$@"\n'
    )
    launcher.chmod(0o755)
    words = [*tool, "ft_launcher", "--nproc-per-node=1", "train.py"]
    run = spawn(words, cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert run.wait(120) == 0, run.output()
    assert re.findall("resumes from step .*", run.out()) == ["resumes from step 0", "resumes from step 20"]
    assert re.search(
        r"attempt 1 failed after .*: rank 0 \(node .*\): RuntimeError: a loose cable \(exit code 1\)\. "
        r"Failure 1 of 3 in a row; attempt 2 follows now",
        run.err(),
    )


def test_every_ending_state_and_variable_is_on_the_page() -> None:
    text = PAGE.read_text()
    for kind in Kind:
        assert f"\n| {kind} |" in text
    for state in State:
        assert str(state) in text
    for variable in (FLAG_VARIABLE, command.NUMBER, command.MARK, chain.RUN_DIR, chain.PREEMPTED):
        assert f"\n| `{variable}` |" in text
