"""A benchmark by itself: `python benchmarks/NAME.py [--runs N] [--no-peer]` prints its table."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks.table import Row, markdown


def main(text: str | None, measure: Callable[..., list[Row]], peer: str) -> None:
    """Measure and print. `text` describes the benchmark; `measure` takes the number of runs, and if with `peer`."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default 5; medians are shown)")
    parser.add_argument("--no-peer", action="store_true", help=f"without {peer}")
    given = parser.parse_args()
    print(markdown(measure(given.runs, peer=not given.no_peer)))
