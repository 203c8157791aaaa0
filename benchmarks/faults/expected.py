"""What the program computes, without torch: whole numbers, so that the order of sums does not matter. Pure."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, SHARDS = 8, 16


def numbers(step: int, shard: int) -> list[int]:
    """One shard's data of a step."""
    return [(7 * step + 3 * shard + 5 * place) % 11 for place in range(WIDTH)]


def result(steps: int) -> str:
    """The weights after so many steps of SGD with a rate of 1/4, on any number of ranks."""
    sums = [
        sum(numbers(step, shard)[place] for step in range(1, steps + 1) for shard in range(SHARDS))
        for place in range(WIDTH)
    ]
    return shown([-total / 4 for total in sums])


def shown(weights: Sequence[float]) -> str:
    """As the program writes them."""
    return " ".join(f"{weight:.2f}" for weight in weights)
