"""A rank that knows nothing of Holdfast and measures what the counting of its optimizer's steps costs, in blocks of
steps alternately with torch's hooks as they are and without any; prints that as JSON. Starts under ft_launcher.
"""

from __future__ import annotations

import json
import statistics
import sys
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim import optimizer as torchs

BLOCKS, STEPS = 400, 100


def main() -> None:
    """Nanoseconds for each step, medians over the blocks."""
    assert not [name for name in sys.modules if name.startswith("holdfast")]
    hooks: Any = torchs._global_optimizer_post_hooks
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    sgd = torch.optim.SGD([weight], lr=0.1)
    began = perf_counter_ns()
    sgd.step()
    first = perf_counter_ns() - began
    began = perf_counter_ns()
    sgd.step()
    second = perf_counter_ns() - began
    sgd.step()
    counting = dict(hooks)
    assert len(counting) == 1

    def block(registered: dict[int, Any]) -> float:
        hooks.clear()
        hooks.update(registered)
        began = perf_counter_ns()
        for _ in range(STEPS):
            sgd.step()
        return (perf_counter_ns() - began) / STEPS

    pairs = [(block(counting), block({})) for _ in range(BLOCKS)]
    more = [counted - plain for counted, plain in pairs]
    plain = statistics.median(each for _, each in pairs)
    print(json.dumps({"more": statistics.median(more), "plain": plain, "first": first - second}), flush=True)


if __name__ == "__main__":
    main()
