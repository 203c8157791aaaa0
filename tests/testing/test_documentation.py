"""docs/testing-your-recovery.md does what it says: its program and its test are run as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.pages import DOCS, block
from tests.processes import Spawner

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
