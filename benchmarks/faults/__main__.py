"""`make faults`: run the corpus, score it, and write the tables into docs/reference/fault-results.md.

`python -m benchmarks.faults --only sleep --phases step,collective` runs a part, and leaves the page alone.
`python -m benchmarks.faults --rejudge FOLDER` runs nothing: it scores folders of `--keep` with today's rules.
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

from benchmarks.environments import NVRX, nvrx

from . import page
from .corpus import Scenario, choose, faults
from .run import HOLDFAST, ROOT, TORCHRUN, Campaign, Runner
from .score import Score, folder_of, rejudged_facts, scored, scored_peer

PAGE = ROOT / "docs" / "reference" / "fault-results.md"


def main() -> None:
    """Parse, run, print."""
    given = parser().parse_args()
    try:
        chosen = choose(given.only, given.phases, one_each=given.one_each, held_out=given.held_out)
        if given.list:
            print(page.listing(chosen))
            return
        sys.exit(_rejudge(given, chosen) if given.rejudge else _run(given, chosen))
    except (ValueError, OSError) as error:
        sys.exit(f"faults: {error}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="make faults", description=__doc__.splitlines()[0])
    names: dict[str, Any] = {"type": lambda text: text.split(","), "default": (), "metavar": "NAME,…"}
    found.add_argument(
        "-o", "--only", help="faults, scenarios (fault/phase), files of faults, or `healthy`", **names
    )
    found.add_argument("-p", "--phases", help="phases", **names)
    found.add_argument("--one-each", action="store_true", help="one phase of each fault")
    found.add_argument(
        "--held-out",
        action=argparse.BooleanOptionalAction,
        help="only faults that no rule was made for; or only the others",
    )
    found.add_argument("-j", "--jobs", type=int, default=3, help="jobs at a time (default 3)")
    found.add_argument("--peers", action=argparse.BooleanOptionalAction, help="torchrun and NVRx as well")
    found.add_argument("-f", "--out", type=Path, help="a file for all results, as JSON")
    found.add_argument("-k", "--keep", type=Path, help="keep the jobs' folders here")
    found.add_argument(
        "--rejudge",
        type=Path,
        metavar="FOLDER",
        help="score folders of --keep with today's rules; run nothing",
    )
    found.add_argument("-l", "--list", action="store_true", help="only list the scenarios")
    return found


def _run(given: argparse.Namespace, found: list[Scenario]) -> int:
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    everything = not (given.only or given.phases or given.one_each or given.held_out is not None)
    with_peers = everything if given.peers is None else given.peers
    with tempfile.TemporaryDirectory(prefix="holdfast-faults-", ignore_cleanup_errors=True) as temporary:
        campaign = Campaign((given.keep or Path(temporary)).resolve(), given.jobs, over)
        scores = [scored(one, facts) for one, facts in campaign.run(HOLDFAST, found) if facts is not None]
        rows = _peers(campaign, given.one_each, found) if with_peers else {}
    if over.is_set():
        print("interrupted; the page is as it was", file=sys.stderr)
        return 130
    run = page.Run(found, scores, rows, campaign.skipped, given.jobs)
    code = _report(given, run)
    if everything:
        PAGE.write_text(page.filled_page(PAGE.read_text(), run))
    return code


def _peers(campaign: Campaign, one_each: bool, among: list[Scenario]) -> dict[str, list[Score]]:
    """torchrun and NVRx on the faults of these scenarios, one phase of each."""
    kinds = {each.kind for each in among if each.kinds}
    given = among if one_each else [each for each in choose(one_each=True) if each.kind in kinds]
    theirs = nvrx()
    runners = {"torchrun": TORCHRUN, **({NVRX: Runner("nvrx", tuple(theirs), "nvrx")} if theirs else {})}
    return {
        name: [scored_peer(one, facts) for one, facts in campaign.run(runner, given) if facts is not None]
        for name, runner in runners.items()
    }


def _rejudge(given: argparse.Namespace, found: list[Scenario]) -> int:
    home = given.rejudge / HOLDFAST.who
    if not home.is_dir():
        raise ValueError(f"{given.rejudge} has no folder {HOLDFAST.who!r}; --keep FOLDER makes one")
    kept = [each for each in found if folder_of(home, each).is_dir()]
    scores = [scored(each, rejudged_facts(folder_of(home, each), each)) for each in kept]
    return _report(given, page.Run(kept, scores))


def _report(given: argparse.Namespace, run: page.Run) -> int:
    if given.out:
        given.out.write_text(json.dumps(_results(run), indent=1) + "\n")
    print(page.tables(run))
    if run.peers:
        print(f"\n{page.peer_table(run)}")
    return 0 if all(score.right for score in run.scores) else 1


def _results(run: page.Run) -> dict[str, object]:
    return {
        "kinds": sum(bool(one.verdict) for one in faults().values()),
        "scores": [asdict(score) | {"right": score.right} for score in run.scores],
        "peers": {who: [asdict(score) for score in scores] for who, scores in run.peers.items()},
        "skipped": run.skipped,
    }


if __name__ == "__main__":
    main()
