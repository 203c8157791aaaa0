"""A rank under one of several launchers is killed with -9: how long until all ranks have done an all-reduce again?

All launchers run on this machine. Holdfast has standbys waiting under each of them; torchrun beside it, by turns, and
Holdfast with as many ranks under one launcher. The rank is never one of the launcher that hosts the store.
By itself: `python benchmarks/restart_nodes.py [--runs N] [--no-peer]`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import by_itself
from benchmarks.launchers import HOLDFAST, TORCHRUN
from benchmarks.restart import NO_STORE_SHARING
from benchmarks.several_launchers import Job, several
from benchmarks.standbys import until_all_wait
from benchmarks.table import Row, median

SHAPES = ((2, 1), (2, 2), (16, 1))  # launchers, ranks of each
FEWEST, MOST = (2, 1), (16, 1)  # for the growth
OURS, PEER = 3, 2  # restarts in each run
START, RESTART = 300.0, 60.0  # seconds that the first start and a restart may take
SETTLED = 1.0  # seconds before a kill: torchrun may restart once more by itself
NOTHING = float("nan")


@dataclass
class Restarts:
    """Those of one launcher in one shape."""

    seconds: list[float] = field(default_factory=list)
    tried: int = 0

    def run(self, launcher: list[str], nodes: int, ranks: int, count: int) -> None:
        """Of one job: `count` restarts, none after one that takes too long."""
        self.tried += count
        before = len(self.seconds)
        with several(launcher, nodes, ranks) as job:
            came = job.joined(START)
            while came and len(self.seconds) < before + count:
                if launcher is HOLDFAST:
                    for one in job.launchers:
                        until_all_wait(one.pid, ranks)
                killed = _kill(job, came[0])
                came = job.joined(RESTART)
                if came and killed:
                    self.seconds.append(came[1] - killed)
            if not came:
                shape = f"{nodes} launchers × {ranks}"
                print(f"{launcher[-1]}, {shape}, not back in time:\n{''.join(job.errors)}", file=sys.stderr)

    @property
    def middle(self) -> float | None:
        """The median, if any came back."""
        return median(self.seconds) if self.seconds else None

    @property
    def count(self) -> str:
        """How many came back, of how many."""
        return f"{len(self.seconds)} of {self.tried}"


def _kill(job: Job, pids: list[int]) -> float:
    """When a rank was killed; 0 if its launcher has just restarted its ranks by itself."""
    time.sleep(SETTLED)
    victim = job.victim(pids)
    now = time.time()
    if victim:
        os.kill(victim, signal.SIGKILL)
    return now if victim else 0.0


def measure(runs: int, peer: bool = True) -> list[Row]:
    """All shapes in each run, by turns."""
    ours, theirs = ({shape: Restarts() for shape in SHAPES} for _ in range(2))
    single = {nodes * ranks: Restarts() for nodes, ranks in SHAPES}
    for _ in range(runs):
        for nodes, ranks in SHAPES:
            if peer:
                theirs[nodes, ranks].run(TORCHRUN, nodes, ranks, PEER)
            ours[nodes, ranks].run(HOLDFAST, nodes, ranks, OURS)
        for world, one in single.items():
            one.run(HOLDFAST, 1, world, OURS)
    rows: list[Row] = []
    for nodes, ranks in SHAPES:
        mine, other, one = ours[nodes, ranks], theirs[nodes, ranks], single[nodes * ranks]
        what = f"kill -9 to the first all-reduce on all ranks of {nodes} launchers × {ranks}"
        beside = f"Holdfast, 1 launcher × {nodes * ranks}"
        seconds = NOTHING if mine.middle is None else mine.middle
        if peer:
            name = f"torchrun: none within {RESTART:.0f} s" if other.middle is None else NO_STORE_SHARING
            counts = f"{mine.count} restarts, torchrun {other.count}"
            rows.append(Row(what, "s", seconds, other.middle, name, note=counts))
        rows.append(
            Row(what, "s", seconds, one.middle, beside, note=f"{mine.count} restarts, 1 launcher {one.count}")
        )
    mine, other = _growth(ours), _growth(theirs)
    what = f"the same, {MOST[0]} launchers over {FEWEST[0]} with 1 rank each"
    return [*rows, Row(what, "×", NOTHING if mine is None else mine, other, "torchrun" if other else "")]


def _growth(measured: dict[tuple[int, int], Restarts]) -> float | None:
    few, many = measured[FEWEST].middle, measured[MOST].middle
    return many / few if few and many else None


if __name__ == "__main__":
    by_itself.main(__doc__, measure, "torchrun")
