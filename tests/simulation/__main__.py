"""`make simulate`: simulate jobs of many seeds; the first violated invariant of each seed is printed, shortened.

`python -m tests.simulation [--seeds A:B] [--nodes N] [--minutes M] [--jobs J]`; exit code 1: an invariant is violated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
from contextlib import suppress
from functools import partial

from .search import Outcome, simulate


def main() -> int:
    """Simulate, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    for name, type_, default, value, text in (
        ("--seeds", str, "0:300", "A:B", "the first seed and the one after the last"),
        ("--nodes", int, None, "N", "nodes of each job (default: 1 to 16, by the seed)"),
        ("--minutes", float, 1.0, "M", "minutes of training (default: 1)"),
        ("--jobs", int, multiprocessing.cpu_count(), "J", "processes"),
    ):
        parser.add_argument(name, type=type_, default=default, metavar=value, help=text)
    given = parser.parse_args()
    try:
        first, last = (int(part) for part in given.seeds.split(":"))
    except ValueError:
        parser.error(f"--seeds {given.seeds!r} is not A:B; give two whole numbers, for example 0:300")
    others = [value for value in (given.nodes, given.minutes, given.jobs) if value is not None]
    if not 0 <= first < last or min(others) <= 0:
        parser.error("give --seeds A:B with 0 <= A < B, and values above 0 for the other options")
    began, steps, violated, is_complete = time.monotonic(), 0, 0, False
    ignore = signal.signal, (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.Pool(given.jobs, *ignore) as pool, suppress(KeyboardInterrupt):
        run = partial(simulate, nodes=given.nodes, minutes=given.minutes)
        for outcome in pool.imap_unordered(run, range(first, last), chunksize=20):
            steps += outcome.steps
            if outcome.violation:
                violated += 1
                print(_text(outcome, given.nodes, given.minutes), flush=True)
        is_complete = True
    if not is_complete:
        print(f"interrupted after {steps} steps", file=sys.stderr)
        return 130
    seconds = time.monotonic() - began
    result = f"{violated} seeds violate an invariant" if violated else "every invariant held"
    print(f"{last - first} seeds, {steps} steps, {seconds:.0f} s: {result}")
    return 1 if violated else 0


def _text(outcome: Outcome, nodes: int | None, minutes: float) -> str:
    again = f"--seeds {outcome.seed}:{outcome.seed + 1}"
    again += (f" --nodes {nodes}" if nodes else "") + (f" --minutes {minutes:g}" if minutes != 1.0 else "")
    return f"seed {outcome.seed} ({again}): {outcome.violation}\n{outcome.story}"


if __name__ == "__main__":
    sys.exit(main())
