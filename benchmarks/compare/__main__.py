"""`make compare`: measure torchrun, NVRx and Holdfast in turn, and write docs/compare.md and its plot.

`python -m benchmarks.compare [--runs N] [--only figures|faults]` takes about N × 2 + 6 minutes.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys

import torch

from benchmarks.run import machine
from benchmarks.table import filled

from .faults import FAULTS, Outcome, Outcomes
from .figures import ROOT, contenders, figures
from .page import conditions, draw, tables

MARKS = "<!-- measured -->", "<!-- end -->"
PAGE, PLOT = ROOT / "docs" / "compare.md", ROOT / "docs" / "compare.svg"


def faults() -> dict[str, Outcomes]:
    """Each fault done to each contender, once."""
    found: dict[str, Outcomes] = {}
    for what, do in FAULTS.items():
        found[what] = {}
        for contender in contenders():
            print(f"{contender.name}: {what} …", file=sys.stderr, flush=True)
            try:
                found[what][contender.who] = do(contender)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                found[what][contender.who] = Outcome("could not be tried: its ranks did not start", None)
    return found


def main() -> None:
    """Measure, print, and put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=5, help="runs of each figure (default 5; medians are shown)"
    )
    parser.add_argument("--only", choices=("figures", "faults"), help="print these; change no page")
    given = parser.parse_args()
    # Otherwise SIGTERM would leave the job at hand behind, perhaps a stopped one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        _compare(given.runs, given.only)
    except KeyboardInterrupt:
        sys.exit("interrupted; the page is as it was")
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"nothing was compared: {error}")


def _compare(runs: int, only: str | None) -> None:
    page = "" if only else PAGE.read_text()
    if not only:
        filled(page, "", *MARKS)  # first: who has no page to fill learns so at once
    names = {each.who: each.name for each in contenders()}
    measured = [] if only == "faults" else figures(contenders(), runs)
    happened = {} if only == "figures" else faults()
    before = f"{machine(runs)} {conditions(names, torch.cuda.device_count())}"
    text = f"{before}\n\n{tables(names, measured, happened)}"
    print(text)
    if not only:
        PAGE.write_text(filled(page, text, *MARKS))
        draw(names, measured, PLOT)


if __name__ == "__main__":
    main()
