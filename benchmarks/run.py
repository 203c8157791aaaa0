"""`make bench`: measure the figures of docs/benchmarks.md and write the table there.

`python benchmarks/run.py [--runs N] [NAME …]` measures only the named benchmarks and only prints.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.marks import filled  # noqa: E402
from benchmarks.table import Row, markdown  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks.md"
NAMES = (
    "heartbeat",
    "optimizer_steps",
    "hang_detection",
    "launch",
    "imports",
    "restart",
    "restart_nodes",
    "restart_memory",
    "store_load",
    "judge",
    "standbys",
    "footprint",
    "straggler",
    "straggler_reports",
    "kernel_records",
    "lightning_callbacks",
    "incident_list",
)
MARKS = "<!-- figures -->", "<!-- end of figures -->"


def main() -> None:
    """Measure, print, and unless only some were asked for, put the table on the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default 5; medians are shown)")
    given = parser.parse_args()
    rows: list[Row] = []
    for name in given.names or NAMES:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").measure(given.runs)
    table = f"{machine(given.runs)}\n\n{markdown(rows)}"
    print(table)
    if not given.names:
        PAGE.write_text(filled(PAGE.read_text(), table, *MARKS))


def machine(runs: int) -> str:
    """Where and when."""
    import os

    import torch

    return (
        f"Measured on {datetime.date.today().isoformat()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}; medians of {runs} runs."
    )


if __name__ == "__main__":
    main()
