"""`make simulate`: simulate jobs of many seeds; the first violated invariant of each seed is printed, shortened.

`python -m tests.simulation [--seeds A:B] [--nodes N] [--minutes M] [--jobs J]`; exit code 1: an invariant is violated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from functools import partial

from .search import Outcome, simulate


def main() -> int:
    """Simulate, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument(
        "--seeds", default="0:300", metavar="A:B", help="the first seed and the one after the last"
    )
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="nodes of each job (default: 1 to 16, by the seed)"
    )
    parser.add_argument(
        "--minutes", type=float, default=1.0, metavar="M", help="minutes of training (default: 1)"
    )
    parser.add_argument(
        "--jobs", type=int, default=multiprocessing.cpu_count(), metavar="J", help="processes"
    )
    given = parser.parse_args()
    try:
        first, last = (int(part) for part in given.seeds.split(":"))
    except ValueError:
        parser.error(f"--seeds {given.seeds!r} is not A:B; give two whole numbers, for example 0:300")
    began, steps, violated = time.monotonic(), 0, 0
    with multiprocessing.Pool(given.jobs) as pool:
        run = partial(simulate, nodes=given.nodes, minutes=given.minutes)
        for outcome in pool.imap_unordered(run, range(first, last), chunksize=20):
            steps += outcome.steps
            if outcome.violation:
                violated += 1
                print(_text(outcome, given.nodes, given.minutes), flush=True)
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
