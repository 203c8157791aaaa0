"""The callbacks with `pytorch_lightning`, and with both names of Lightning in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Board
from tests.processes import Spawner

PROGRAM = Path(__file__).resolve().parent / "programs" / "either_lightning.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [["pytorch_lightning"], ["lightning.pytorch", "pytorch_lightning"]], ids=len
)
def test_either_lightning(names: list[str], ranked: Board, spawn: Spawner, tmp_path: Path) -> None:
    """In a process of its own, as this one has loaded `lightning`; it finds the board where a rank does."""
    job = spawn.python(
        PROGRAM, str(tmp_path / "out"), *names, env={"FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "flag")}
    )
    assert job.wait() == 0, job.output()[-4000:]
    (line,) = (line for line in job.out().splitlines() if line.startswith("{"))
    told = json.loads(line)
    assert told.pop("loaded") == sorted(name.partition(".")[0] for name in names)
    assert sorted(told) == sorted(names)
    checkpoints = 0
    for name in names:
        # Stopped early after three epochs of ten: complete.
        assert (told[name]["bases"], told[name]["step"], told[name]["flag"]) == (True, 30, True)
        assert told[name]["checkpoints"] >= checkpoints + 6
        checkpoints = told[name]["checkpoints"]
