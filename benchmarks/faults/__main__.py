"""`make faults`: run the corpus, score it, and write the tables into docs/faults.md.

`python -m benchmarks.faults --only sleep --phases step,collective` runs a part, and leaves the page alone.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import kinds, page, peers
from .campaign import Campaign
from .launching import HOLDFAST, ROOT
from .scenarios import Scenario, chosen
from .score import scored

PAGE = ROOT / "docs" / "faults.md"


def main() -> None:
    """Parse, run, print."""
    given = _arguments()
    try:
        found = chosen(given.only, given.phases, one_each=given.one_each, later=given.later)
        if given.list:
            print(page.listing(found))
            return
        sys.exit(_run(given, found))
    except (ValueError, OSError) as error:
        sys.exit(f"faults: {error}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__.splitlines()[0])
    names: dict[str, Any] = {"type": lambda text: text.split(","), "default": (), "metavar": "NAME,…"}
    parser.add_argument("-o", "--only", help="kinds, scenarios (kind/phase), or `healthy`", **names)
    parser.add_argument("-p", "--phases", help="phases", **names)
    parser.add_argument("--one-each", action="store_true", help="one phase of each kind")
    parser.add_argument(
        "--later",
        action=argparse.BooleanOptionalAction,
        help="only kinds that were written last; or only the others",
    )
    parser.add_argument("-j", "--jobs", type=int, default=3, help="jobs side by side (default 3)")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, help="torchrun and NVRx as well")
    parser.add_argument("-f", "--out", type=Path, help="a file for all results, as JSON")
    parser.add_argument("-k", "--keep", type=Path, help="keep the jobs' folders here")
    parser.add_argument("-l", "--list", action="store_true", help="only say what there is")
    return parser.parse_args()


def _run(given: argparse.Namespace, found: list[Scenario]) -> int:
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    everything = not (given.only or given.phases or given.one_each or given.later is not None)
    with tempfile.TemporaryDirectory(prefix="holdfast-faults-", ignore_cleanup_errors=True) as temporary:
        campaign = Campaign((given.keep or Path(temporary)).resolve(), given.jobs, over)
        scores = [scored(one, facts) for one, facts in campaign.run(HOLDFAST, found) if facts is not None]
        rows = peers.rows(campaign, given.one_each, found) if _with_peers(given, everything) else []
    if over.is_set():
        print("interrupted; the page is as it was", file=sys.stderr)
        return 130
    return _told(given, page.Run(found, scores, rows, campaign.skipped, given.jobs), everything)


def _with_peers(given: argparse.Namespace, everything: bool) -> bool:
    return everything if given.peers is None else bool(given.peers)


def _told(given: argparse.Namespace, run: page.Run, everything: bool) -> int:
    if given.out:
        given.out.write_text(json.dumps(_results(run), indent=1) + "\n")
    print(page.tables(run))
    if everything:
        PAGE.write_text(page.filled_page(PAGE.read_text(), run))
    return 0 if all(score.right for score in run.scores) else 1


def _results(run: page.Run) -> dict[str, object]:
    return {
        "kinds": len(kinds.KINDS),
        "scores": [asdict(score) | {"right": score.right} for score in run.scores],
        "peers": [asdict(row) for row in run.peers],
        "skipped": run.skipped,
    }


if __name__ == "__main__":
    main()
