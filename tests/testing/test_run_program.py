"""`python -m holdfast.testing`, and docs/testing-your-recovery.md, which does what it says."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.pages import DOCS, block
from tests.processes import Spawner

PROGRAM = """
import json, os, sys
import neighbour
print(json.dumps([__name__, sys.argv[1:], sys.path[0], os.environ.get("HOLDFAST_FAULT")]), flush=True)
if "wait" in sys.argv:
    sys.stdin = os.fdopen(os.pipe()[0])
    sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


def test_a_delayed_fault_hits_a_program_that_knows_nothing(spawn: Spawner, program: Path) -> None:
    command = [sys.executable, "-m", "holdfast.testing", program, "--flag", "wait"]
    rank = spawn(command, env={"HOLDFAST_FAULT": "kill@after=0.2s"})
    assert rank.wait() == -signal.SIGKILL


def test_the_program_sees_itself_as_it_would_without_us(spawn: Spawner, program: Path) -> None:
    plain = spawn([sys.executable, program, "--flag", "a b"])
    ours = spawn([sys.executable, "-m", "holdfast.testing", program, "--flag", "a b"])
    assert (plain.wait(), ours.wait()) == (0, 0)
    assert ours.out() == plain.out()


def test_a_module_too(spawn: Spawner, program: Path) -> None:
    plain = spawn([sys.executable, "-m", "program", "x"], cwd=program.parent)
    ours = spawn([sys.executable, "-m", "holdfast.testing", "-m", "program", "x"], cwd=program.parent)
    assert (plain.wait(), ours.wait()) == (0, 0)
    assert ours.out() == plain.out()


def test_faults_at_a_step_are_left_to_the_program(spawn: Spawner, program: Path) -> None:
    fault = {"HOLDFAST_FAULT": "kill@step=3;kill@after=1h"}
    run = spawn([sys.executable, "-m", "holdfast.testing", program], env=fault)
    assert run.wait() == 0
    assert run.out().rstrip().endswith('"kill@step=3"]')
    assert "left to the program's own Faults.at_step: kill@step=3" in run.err()


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--what"]])
def test_a_wrong_command_line_is_one_line_and_status_2(spawn: Spawner, arguments: list[str]) -> None:
    run = spawn([sys.executable, "-m", "holdfast.testing", *arguments])
    assert run.wait() == 2
    assert run.err().startswith("usage: ") and run.err().count("\n") == 1


def test_a_wrong_fault_is_one_line_and_status_2(spawn: Spawner, program: Path) -> None:
    run = spawn([sys.executable, "-m", "holdfast.testing", program], env={"HOLDFAST_FAULT": "kil@after=1s"})
    assert run.wait() == 2
    assert run.err().startswith("holdfast.testing: error: HOLDFAST_FAULT: ") and run.err().count("\n") == 1
    assert run.out() == ""


# -- the page --------------------------------------------------------------------------------------------------


PAGE = DOCS / "testing-your-recovery.md"


@pytest.mark.slow
def test_the_page_s_own_test_passes(spawn: Spawner, tmp_path: Path) -> None:
    for name in ("train.py", "test_recovery.py"):
        (tmp_path / name).write_text(block(PAGE.name, name))
    # Two of its faults: each of them is tested on its own elsewhere.
    chosen = [
        f"test_recovery.py::test_recovers[{fault}]" for fault in ("kill@step=12", "stop@step=12,rank=1")
    ]
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", tmp_path / "runs"]
    run = spawn([sys.executable, "-m", "pytest", *options, *chosen], cwd=tmp_path)
    assert run.wait(ceiling=150) == 0, run.output()
    assert re.search(r"^2 passed", run.out(), re.MULTILINE), run.output()
