"""The example's text and the order in which the ranks read it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.demo.example import load

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
