"""The examples, killed on the way, with warm start and without: the same weights, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launcher.conftest import LAUNCHER
from tests.processes import Spawner

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = {
    "plain_loop.py": ["--step-seconds=0"],
    "char_transformer/train.py": ["--steps=20"],
}


def train(spawn: Spawner, folder: Path, program: str, mode: str) -> tuple[dict[str, Any], set[str]]:
    """The last checkpoint, and how the ranks were started."""
    place = folder / mode
    flags = ["--nproc-per-node=2", "--max-restarts=1", f"--ft-warm-start={mode}", f"--ft-run-dir={place}.run"]
    words = [f"--dir={place}", *PROGRAMS[program]]
    environment = {"OMP_NUM_THREADS": "1", "HOLDFAST_FAULT": "kill@step=12,rank=1,cycle=0"}
    job = spawn([*LAUNCHER, *flags, str(EXAMPLES / program), *words], env=environment)
    assert job.wait(150) == 0, job.output()
    (journal,) = Path(f"{place}.run").glob("journal-*.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [each["cycle"] for each in records if each["kind"] == "restart"] == [1]
    starts = {each["start"] for each in records if each["kind"] == "rank_start"}
    return torch.load(max(place.glob("step-*.pt"))), starts


def tensors(state: Any) -> list[torch.Tensor]:
    """All that are in there, in order."""
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [each for value in values for each in tensors(value)]


@pytest.mark.variant
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_weights(spawn: Spawner, tmp_path: Path, program: str) -> None:
    warm, were_warm = train(spawn, tmp_path, program, "on")
    cold, were_cold = train(spawn, tmp_path, program, "off")
    assert (were_warm, were_cold) == ({"warm"}, {"cold"})
    ours, theirs = tensors(warm), tensors(cold)
    assert len(ours) > 4 and all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
