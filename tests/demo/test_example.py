"""The example: its checkpoints are complete or absent whenever the writer dies; its text, and the order of batches."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.demo.example import FOLDER, load
from tests.processes import Spawner

checkpoint = load("checkpoint")

SAVING = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import checkpoint, pathlib, torch
for step in range(1, 100000):
    checkpoint.save(pathlib.Path(sys.argv[1]), step, {{"step": step, "model": torch.full((200_000,), step)}})
    print("saved", step, flush=True)
"""


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 5, {"step": 5, "model": torch.arange(3)})
    state = checkpoint.load_newest(tmp_path)
    assert state["step"] == 5 and torch.equal(state["model"], torch.arange(3))
    assert checkpoint.load(tmp_path, 5)["step"] == 5


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100):
        checkpoint.save(tmp_path, step, {"step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000015.pt", "step-00000100.pt"]


def test_damaged_ones_of_later_steps_make_no_good_one_go(tmp_path: Path) -> None:
    for step in (5, 10):
        checkpoint.save(tmp_path, step, {"step": step})
    for step in (20, 25):
        (tmp_path / f"step-{step:08d}.pt").write_bytes(b"no checkpoint")
    checkpoint.save(tmp_path, 15, {"step": 15})
    assert checkpoint.load_newest(tmp_path)["step"] == 15 and checkpoint.load(tmp_path, 10)["step"] == 10


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None


def test_one_that_cannot_be_read_is_named_and_skipped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for step in (5, 10):
        checkpoint.save(tmp_path, step, {"step": step, "model": torch.zeros(1000)})
    newest = tmp_path / "step-00000010.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    assert checkpoint.load_newest(tmp_path)["step"] == 5
    assert capfd.readouterr().err.startswith("skipped step-00000010.pt, it cannot be read: ")


def test_a_half_written_one_is_removed(tmp_path: Path) -> None:
    (tmp_path / "step-00000010.pt.tmp").write_bytes(b"PK")
    assert checkpoint.load_newest(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_killed_leaves_a_complete_one(spawn: Spawner, tmp_path: Path) -> None:
    writer = spawn.python(SAVING, str(tmp_path))
    writer.wait_for("saved 20$")
    assert writer.stop(signal.SIGKILL) == -signal.SIGKILL
    state = checkpoint.load_newest(tmp_path)
    last_said = int(writer.out().split()[-1])
    assert state["step"] >= last_said
    assert torch.equal(state["model"], torch.full((200_000,), state["step"]))


data = load("data")


def batches(rank: int = 0, world_size: int = 1, windows: int = 24, batch_size: int = 2) -> Any:
    """`Batches` of the example, which is loaded by its path, over a text in which every character is its position."""
    return data.Batches(torch.arange(windows * 4 + 1), 4, batch_size, rank, world_size, seed=7)


def test_the_text_is_source_code_of_the_asked_size_and_the_same_each_time() -> None:
    text = data.load_text(200_000)
    assert len(text) == 200_000
    assert torch.equal(text, data.load_text(200_000))
    assert text.max() < data.VOCABULARY
    assert "def " in bytes(text.tolist()).decode("ascii")


def test_what_follows_a_character_is_the_next_one() -> None:
    characters, following = batches().at(3)
    assert torch.equal(characters + 1, following)


def test_a_batch_is_a_function_of_the_step_whatever_was_read_before() -> None:
    read_in_order = batches()
    for step in range(30):
        read_in_order.at(step)
    assert torch.equal(read_in_order.at(30)[0], batches().at(30)[0])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_ranks_read_each_window_once_in_an_epoch(world_size: int) -> None:
    ranks = [batches(rank, world_size) for rank in range(world_size)]
    steps = 24 // (2 * world_size)
    first = torch.cat([rank.at(step)[0][:, 0] for rank in ranks for step in range(steps)])
    assert sorted(first.tolist()) == list(range(0, 96, 4))


def test_each_epoch_has_an_order_of_its_own() -> None:
    order = batches()
    one, two = (torch.cat([order.at(step)[0][:, 0] for step in range(at, at + 12)]) for at in (0, 12))
    assert sorted(one.tolist()) == sorted(two.tolist())
    assert not torch.equal(one, two)
