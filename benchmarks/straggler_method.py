"""How often the straggler rule names a slow rank or node, and how often a healthy one: simulated jobs.

By itself: `python -m benchmarks.straggler_method` prints the two tables of docs/straggler-method.md, in about ten
minutes; `--jobs 20` takes a tenth of that; `--write docs/straggler-method.md` writes them between its marks.

A value is `exp(noise)` seconds with normal noise, so all five signals are alike and cost a fifth of the time each. Only
signal 0 is slow. Each report sees the last nine windows, as the detector's do.
Does not cover: noise that is shared by the ranks of a node, and windows that depend on each other.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.table import filled, table
from holdfast.straggler.rule import LONGEST, Findings, Thresholds, find_stragglers

SIGNALS, PER_NODE = 5, 8
MARKS = "<!-- rates -->", "<!-- end of rates -->"


@dataclass(frozen=True)
class Job:
    """A simulated job, and what is slow in it."""

    what: str
    ranks: int
    noise: float
    slowdown: float = 1.0
    slow: tuple[int, ...] = ()
    """Ranks; their nodes, if `by_node`."""
    by_node: bool = False
    again: tuple[int, ...] = ()
    """Of the slow ranks those that are slower by the same factor once more."""
    min_slowdown: float = 1.10
    tails: float = 0.0
    """This share of the values is prolonged by an exponential of 35 % in the mean."""
    drift: float = 0.0
    """All ranks become slower by this share in each window."""
    groups: int = 1
    """Neighbouring ranks do the work of another group, which takes twice as long as that of the one before."""
    windows: int = 20

    def times(self, seed: int) -> np.ndarray:
        """Seconds [window, rank, signal]."""
        random = np.random.default_rng(seed)
        noise = random.normal(0, self.noise, (self.windows, self.ranks, SIGNALS))
        times = np.exp(noise + self.drift * np.arange(self.windows)[:, None, None])
        prolonged = random.random(times.shape) < self.tails
        times *= 1 + prolonged * random.exponential(0.35, times.shape)
        times *= 2.0 ** (np.arange(self.ranks) % self.groups)[:, None]
        times[:, list(self.slow), 0] *= self.slowdown
        times[:, list(self.again), 0] *= self.slowdown
        return times

    def findings(self, seed: int) -> Iterator[Findings]:
        """Of each report."""
        times, previous = self.times(seed), None
        nodes = [f"node-{rank // PER_NODE}" for rank in range(self.ranks)]
        for window in range(self.windows):
            previous = find_stragglers(
                times[max(0, window - LONGEST) : window + 1],
                groups=[rank % self.groups for rank in range(self.ranks)],
                nodes=nodes if self.ranks > PER_NODE else None,
                previous=previous,
                thresholds=Thresholds(min_slowdown=self.min_slowdown),
            )
            yield previous

    @property
    def culprits(self) -> tuple[set[int], set[str]]:
        """The ranks and the nodes that are to be named."""
        if self.by_node:
            return set(self.again), {f"node-{rank // PER_NODE}" for rank in self.slow}
        return set(self.slow), set()


def outcome(job: Job, seed: int) -> tuple[int | None, bool]:
    """The first report that names all that is slow, and whether any report names something else."""
    ranks, nodes = job.culprits
    first, wrong = None, False
    for report, findings in enumerate(job.findings(seed), 1):
        named = {one.rank for one in findings.ranks}, {one.node for one in findings.nodes}
        wrong |= not (named[0] <= ranks and named[1] <= nodes)
        if job.slow and first is None and named[0] >= ranks and named[1] >= nodes:
            first = report
    return first, wrong


def outcomes(job: Job, jobs: int) -> list[tuple[int | None, bool]]:
    """Of as many jobs, on all processors."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(partial(outcome, job), range(jobs), chunksize=max(1, jobs // 20)))


def _node(*numbers: int) -> tuple[int, ...]:
    return tuple(rank for number in numbers for rank in range(PER_NODE * number, PER_NODE * (number + 1)))


HEALTHY = (
    *(Job("", ranks, noise) for ranks in (2, 3, 4, 8, 64, 512) for noise in (0.01, 0.05, 0.10, 0.20)),
    *(Job("", ranks, noise) for ranks in (4096, 16384) for noise in (0.05, 0.20)),
    Job("2 % of the values prolonged by 35 %", 8, 0.05, tails=0.02),
    Job("2 % of the values prolonged by 35 %", 64, 0.05, tails=0.02),
    Job("2 % of the values prolonged by 35 %", 512, 0.05, tails=0.02),
    Job("all ranks 2 % slower in each window", 64, 0.05, drift=0.02),
    Job("4 groups of different work", 64, 0.05, groups=4),
)
SLOW = (
    *(Job("1 rank", 4, noise, 2.0, (1,), windows=10) for noise in (0.05, 0.10, 0.20)),
    *(Job("1 rank", 8, noise, 1.2, (1,), windows=10) for noise in (0.02, 0.05, 0.10)),
    *(Job("1 rank", 64, 0.01, 1.05, (1,), min_slowdown=one, windows=10) for one in (1.04, 1.10)),
    *(Job("1 rank", 512, noise, 1.15, (1,), windows=10) for noise in (0.02, 0.05, 0.10)),
    Job("1 rank", 16384, 0.05, 1.3, (1,), windows=10),
    *(Job("1 node", 8 * nodes, 0.02, 1.15, _node(1), by_node=True, windows=10) for nodes in (2, 4, 8, 64)),
    Job("1 node", 64, 0.10, 1.15, _node(1), by_node=True, windows=10),
    Job("2 nodes", 64, 0.02, 1.15, _node(1, 5), by_node=True, windows=10),
    Job("1 node, and a rank of it once more", 64, 0.02, 1.3, _node(1), True, (9,), windows=10),
    Job("2 ranks of 8", 8, 0.02, 1.2, (1, 6), windows=10),
    Job("2 ranks, in 2 of 4 groups", 64, 0.05, 1.3, (1, 6), groups=4, windows=10),
    Job("1 rank, 2 % of the values prolonged", 64, 0.05, 1.3, (1,), tails=0.02, windows=10),
)


def tables(jobs: int) -> str:
    """Both as Markdown. Jobs of more than 1,000 ranks are a tenth as many."""
    reports = (3, 4, 5, 6, 8, 10)
    healthy, slow = [], []
    for job in (*HEALTHY, *SLOW):
        count = jobs if job.ranks < 1000 else max(1, jobs // 10)
        found = outcomes(job, count)
        wrong = f"{sum(wrong for _, wrong in found)} of {count}"
        common = [job.what, f"{job.ranks:,}", f"{job.noise:.0%}"]
        if not job.slow:
            healthy.append([*common, wrong])
            continue
        firsts = [first for first, _ in found if first is not None]
        named = [f"{sum(first <= report for first in firsts) / count:.0%}" for report in reports]
        slow.append([*common, str(job.slowdown), str(job.min_slowdown), *named, wrong])
    by = (f"named by report {reports[0]}", *map(str, reports[1:]))
    return "\n\n".join(
        (
            table(("healthy job", "ranks", "noise", "jobs with a false name in 20 reports"), healthy),
            table(("slow", "ranks", "noise", "slowdown", "`min_slowdown`", *by, "another named"), slow),
        )
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200, help="simulated jobs for each row")
    parser.add_argument("--write", type=Path, help="a page to write the tables into")
    args = parser.parse_args()
    print(text := tables(args.jobs))
    if args.write:
        args.write.write_text(filled(args.write.read_text(), text, *MARKS))


if __name__ == "__main__":
    main()
