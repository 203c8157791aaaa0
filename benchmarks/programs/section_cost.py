"""Microseconds that a straggler section costs, as a line of JSON: `section_cost.py holdfast|nvidia_resiliency_ext`.

The empty loop around each is taken off. Both have the documented interface, so both run the same lines.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

ENTRIES = 1000
BLOCKS = 100

if sys.argv[1] != "holdfast":
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # the peer calls CUPTI at once, and the fake one checks this
straggler: Any = importlib.import_module(f"{sys.argv[1]}.straggler")
Detector: Any = straggler.Detector


class Model:
    """Something to wrap."""

    def forward(self) -> None:
        """Nothing."""


def measured(count: int) -> None:
    """A section with a name."""
    for _ in range(count):
        with Detector.detection_section("fwd", profile_cuda=False):
            pass


def unnamed(count: int) -> None:
    """A section named after its place."""
    for _ in range(count):
        with Detector.detection_section(profile_cuda=False):
            pass


def called(count: int) -> None:
    """A method, wrapped or not."""
    model = Model()
    for _ in range(count):
        model.forward()


def empty(count: int) -> None:
    """The loop alone."""
    for _ in range(count):
        pass


def microseconds(loop: Callable[[int], None], less: Callable[[int], None] = empty) -> float:
    """One entry of the loop: the median over blocks, less that of another loop."""

    def block(one: Callable[[int], None]) -> float:
        started = perf_counter_ns()
        one(ENTRIES)
        return (perf_counter_ns() - started) / ENTRIES / 1e3

    block(loop)
    return statistics.median(block(loop) for _ in range(BLOCKS)) - statistics.median(
        block(less) for _ in range(BLOCKS)
    )


def main() -> None:
    """All figures."""
    found = {}
    unwrapped = microseconds(called)
    for what, interval in (("section", 1), ("every 10th", 10), ("skipped", 10**9)):
        Detector.initialize(profiling_interval=interval)
        found[what] = microseconds(measured)
        Detector.shutdown()
    Detector.initialize()
    found["unnamed"] = microseconds(unnamed)
    Detector.wrap_callables([straggler.CallableId(Model, "forward")], profile_cuda=False)
    found["wrapped"] = microseconds(called) - unwrapped
    Detector.shutdown()
    print(json.dumps(found))


main()
