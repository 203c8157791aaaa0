"""`make bench`: measure the figures of docs/benchmarks.md and write the table there.

`python benchmarks/run.py [--runs N] [--no-peer] [NAME …]` measures only the named figures and only prints.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.table import Row, filled, markdown  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks.md"
MARKS = "<!-- figures -->", "<!-- end of figures -->"
FIGURES = {
    "heartbeat": "supervision",
    "optimizer_steps": "supervision",
    "hang_detection": "supervision",
    "launch": "supervision",
    "imports": "restart",
    "restart": "restart",
    "restart_nodes": "restart",
    "restart_memory": "restart",
    "store_load": "store_load",
    "standbys": "supervision",
    "footprint": "supervision",
    "straggler": "straggler",
    "straggler_reports": "straggler",
    "kernel_records": "straggler",
    "lightning_callbacks": "supervision",
}
"""The function of this name, in this module: of the number of runs, and of whether the peer is measured too."""


def main() -> None:
    """Measure, print, and unless only some were asked for, put the table on the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"some of {', '.join(FIGURES)} (default: all)"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default 5; medians are shown)")
    parser.add_argument(
        "--no-peer", action="store_true", help="without NVRx and the other peers that can be left out"
    )
    given = parser.parse_args()
    if unknown := {*given.names} - {*FIGURES}:
        parser.error(f"there is no figure named {', '.join(sorted(unknown))}")
    # Otherwise SIGTERM would leave the job at hand behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    rows: list[Row] = []
    for name in given.names or FIGURES:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        measure = getattr(importlib.import_module(f"benchmarks.{FIGURES[name]}"), name)
        rows += measure(given.runs, not given.no_peer)
    table = f"{machine(given.runs)}\n\n{markdown(rows)}"
    print(table)
    if not given.names:
        PAGE.write_text(filled(PAGE.read_text(), table, *MARKS))


def machine(runs: int) -> str:
    """Where and when."""
    import torch

    return (
        f"Measured on {datetime.date.today().isoformat()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}; medians of {runs} runs."
    )


if __name__ == "__main__":
    main()
