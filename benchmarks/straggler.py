"""What a detection section costs the training: measured, skipped, without a name, and as a wrapped callable.

By itself: `python benchmarks/straggler.py [--runs N]`. The empty loop around each is taken off.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.table import Row, markdown, median
from holdfast.straggler import CallableId, Detector

ENTRIES = 1000
BLOCKS = 100


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
    return median(block(loop) for _ in range(BLOCKS)) - median(block(less) for _ in range(BLOCKS))


def once() -> dict[str, float]:
    """All figures, in microseconds."""
    found = {}
    unwrapped = microseconds(called)
    for what, interval in (("section", 1), ("every 10th", 10), ("skipped", 10**9)):
        Detector.initialize(profiling_interval=interval)
        found[what] = microseconds(measured)
        Detector.shutdown()
    Detector.initialize()
    found["unnamed"] = microseconds(unnamed)
    Detector.wrap_callables([CallableId(Model, "forward")])
    found["wrapped"] = microseconds(called) - unwrapped
    Detector.shutdown()
    return found


def measure(runs: int) -> list[Row]:
    """All figures, medians of `runs` runs."""
    seen = [once() for _ in range(runs)]

    def row(text: str, what: str, bound: float | None = None) -> Row:
        ours = median(one[what] for one in seen)
        aim = "" if bound is None else f"≤ {bound:g}"
        return Row(text, "µs", ours, aim=aim, reached=None if bound is None else ours <= bound)

    return [
        row("straggler section, median", "section", 0.5),
        row("straggler section that is skipped, median", "skipped", 0.15),
        row("straggler section, every 10th measured, median", "every 10th"),
        row("straggler section without a name, median", "unnamed"),
        row("wrapped callable, more than the call itself, median", "wrapped"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default 5; medians are shown)")
    given = parser.parse_args()
    print(markdown(measure(given.runs)))


if __name__ == "__main__":
    main()
