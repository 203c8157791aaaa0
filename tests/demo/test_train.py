"""The example under plain torchrun: an interrupted run ends with the very weights of an undisturbed one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.demo.example import TRAIN
from tests.processes import Spawned, Spawner

pytestmark = pytest.mark.slow
STEPS = 12

Start = Callable[..., Spawned]


@pytest.fixture
def torchrun(spawn: Spawner, tmp_path: Path) -> Start:
    # torch leaves folders in the temporary directory when its ranks fail.
    environ = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}

    def start(directory: Path, *, ranks: int = 2, fault: str | None = None) -> Spawned:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        arguments = ["--dir", directory, "--steps", str(STEPS), "--batch-size", "4"]
        return spawn([*command, TRAIN, *arguments], env={**environ, "HOLDFAST_FAULT": fault})

    return start


def ends_with(run: Spawned, code: int) -> str:
    assert run.wait() == code, run.output()
    return run.out()


def result(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    assert found["steps"] == STEPS
    return found


@pytest.mark.variant
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(torchrun: Start, tmp_path: Path) -> None:
    # Three ranks: of two gradients there is one sum only, in whatever order they are added.
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    ends_with(torchrun(undisturbed, ranks=3), 0)
    # Dies at step 10, before it is saved: step 5 is still the last one that was.
    ends_with(torchrun(killed, ranks=3, fault="kill@step=10,rank=0,point=checkpointing"), 1)
    assert "resumed from the checkpoint of step 5" in ends_with(torchrun(killed, ranks=3), 0)
    assert result(killed) == result(undisturbed)


def test_a_checkpoint_of_another_number_of_ranks_is_gone_on_from_and_said(
    torchrun: Start, tmp_path: Path
) -> None:
    ends_with(torchrun(tmp_path / "run", fault="kill@step=8,rank=1"), 1)
    assert "the checkpoint is of 2 ranks" in ends_with(torchrun(tmp_path / "run", ranks=1), 0)
    assert result(tmp_path / "run")
