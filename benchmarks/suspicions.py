"""What placing nodes by suspicion is worth: simulated jobs with the failures that large runs publish.

    python benchmarks/suspicions.py [--jobs 100000] [--seed 0]

Each job trains for a day on 8 to 512 nodes with a few spares. Faults arrive by chance; those of a node or a link stay
and make the job fail again while these nodes take part. After each failure `holdfast.incidents.suspicions` places the
nodes; next to it an oracle that knows the truth (it moves the right node at once, and ends a job with a bug at once),
and no policy (nodes are never moved, and a job ends after ten failures without progress).
Wasted is what was trained in vain, and restarts. Prints a table.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from holdfast.incidents.suspicions import Failure, suspicions
from holdfast.incidents.verdict import HIGH, LOW

HOUR = 3600.0
DAY = 24 * HOUR
SAVES = 600.0  # seconds of training from one checkpoint to the next
RESTART = 60.0  # seconds from a failure until training continues
STEP = 10.0
FAULTS_PER_NODE = 1 / (100 * DAY)  # Llama 3 had one in 264 days; a day of a small job is to have some
HOPELESS = 10
SAME_FAILURE_LIMIT = 3  # the launcher's default: it ends the job
RACK = 8

# Shares of the interruptions of Llama 3's training (arXiv 2407.21783, table 5), rounded; what it calls "host" and
# "GPU" is split into faults that the evidence names and those that it does not.
MIXTURE = {
    "gpu_named": 34,  # uncorrectable memory, lost GPU, Xid: stays, and is named
    "gpu_silent": 12,  # crashes and hangs of one node: stays, and looks like a crash
    "transient": 14,  # happens once, at one node
    "node_lost": 8,  # a host goes, and comes back
    "rack_lost": 1,
    "link": 8,  # between two nodes, flaps for hours
    "service": 6,  # storage or a service: no culprit
    "bug_at_step": 6,  # code or data: at one step, on any node
    "bug": 11,  # at any step, on any node
}
STAYS = {"gpu_named": HOUR, "gpu_silent": HOUR / 2, "link": HOUR, "bug": 3 * HOUR}
"""Seconds of training, on the average, until a fault that stays makes the job fail again."""
NOT_NAMED, WRONG = 0.05, 0.01
"""The share of verdicts without a culprit, and of those that name a wrong node with high confidence."""


@dataclass
class Fault:
    """Something that is broken."""

    kind: str
    nodes: frozenset[str]
    number: int
    at: float = math.inf  # the training time of a bug at one step
    until: float = math.inf  # when a link is stable again


@dataclass
class Result:
    """Of all jobs under one policy."""

    wasted: float = 0.0
    failures: int = 0
    moved: int = 0
    moved_healthy: int = 0
    moved_by_bugs: int = 0
    nodes: int = 0
    ended_wrongly: int = 0


class Job:
    """One job under one policy, from its first step to its end."""

    def __init__(self, policy: str, seed: int, result: Result) -> None:
        self.chance = random.Random(seed)
        count = self.chance.choice((8, 16, 32, 64, 128, 256, 512))
        spares = max(1, count // 64)
        self.everybody = [f"n{number}" for number in range(count + spares)]
        self.count, self.policy, self.result = count, policy, result
        self.members = self.everybody[:count]
        self.now = self.trained = self.saved = 0.0
        self.faults: list[Fault] = []
        self.history: list[Failure] = []
        self.moved: set[str] = set()
        self.in_vain = 0
        result.nodes += len(self.everybody)

    def run(self) -> None:
        """Train for a day, or until the policy ends the job."""
        rate = FAULTS_PER_NODE * self.count
        arrives = self.chance.expovariate(rate)
        while self.trained < DAY:
            fault, seconds = self._next()
            seconds = min(seconds, DAY - self.trained)
            if arrives < seconds:
                seconds, fault = arrives, self._new()
            elif self.trained + seconds >= DAY:
                return
            arrives -= seconds
            if arrives <= 0:
                arrives = self.chance.expovariate(rate)
            self.now += seconds
            self.trained += seconds
            if fault is None or (fault.kind == "bug_at_step" and fault.at > self.trained + 1e-6):
                continue
            if self._fail(fault):
                return

    def _next(self) -> tuple[Fault | None, float]:
        """Which of the faults that stay makes the job fail next, and after how many seconds of training."""
        found: tuple[Fault | None, float] = (None, math.inf)
        self.faults = [each for each in self.faults if each.until > self.now]
        members = set(self.members)
        for each in self.faults:
            if not each.nodes <= members:
                continue
            if each.kind == "bug_at_step":
                after = max(each.at - self.trained, 0.0)
            else:
                after = self.chance.expovariate(1 / STAYS[each.kind])
            found = min(found, (each, after), key=lambda pair: pair[1])
        return found

    def _new(self) -> Fault:
        (kind,) = self.chance.choices(list(MIXTURE), list(MIXTURE.values()))
        nodes: frozenset[str] = frozenset()
        if kind in ("gpu_named", "gpu_silent", "transient", "node_lost"):
            nodes = frozenset({self.chance.choice(self.members)})
        elif kind == "link":
            nodes = frozenset(self.chance.sample(self.members, 2))
        elif kind == "rack_lost":
            first = self.chance.randrange(0, len(self.members), RACK)
            nodes = frozenset(self.members[first : first + RACK])
        fault = Fault(kind, nodes, self.chance.getrandbits(32))
        if kind == "bug_at_step":
            fault.at = self.trained + self.chance.uniform(0, HOUR)
        if kind == "link":
            fault.until = self.now + self.chance.expovariate(1 / (6 * HOUR))
        if kind in STAYS or kind == "bug_at_step":
            self.faults.append(fault)
        return fault

    def _fail(self, fault: Fault) -> bool:
        """The job fails; returns whether it ends."""
        result = self.result
        before, self.saved = self.saved, SAVES * (self.trained // SAVES)
        self.in_vain = 0 if self.saved > before else self.in_vain + 1
        lost = self.trained - self.saved + RESTART
        result.wasted += lost
        result.failures += 1
        failure = self._judged(fault)
        self.trained = self.saved
        self.now += RESTART
        self.history = [*self.history[-15:], failure]
        suspect, times, ends = self._decide(fault)
        if ends:
            result.ended_wrongly += not fault.kind.startswith("bug")
            return True
        self._place(suspect, times, fault)
        return False

    def _judged(self, fault: Fault) -> Failure:
        chance, step = self.chance, int(self.trained / STEP)
        culprit = chance.choice(sorted(fault.nodes)) if fault.nodes else ""
        members = set(self.members)
        common = {"step": step, "without": tuple(self.moved - members), "at": self.now}
        if fault.kind.startswith("bug"):
            where = chance.choice(self.members)
            return Failure("exception", where, HIGH, signature=f"bug {fault.number}", **common)
        if not culprit or chance.random() < NOT_NAMED:
            return Failure("unknown", **common)
        if chance.random() < WRONG:
            return Failure("signal", chance.choice(self.members), HIGH, **common)
        if fault.kind == "link":
            (peer,) = fault.nodes - {culprit}
            return Failure("network", culprit, HIGH, peers=(peer,), **common)
        if fault.kind in ("node_lost", "rack_lost"):
            return Failure("node_lost", culprit, HIGH, **common)
        hardware = "uncorrectable memory error" if fault.kind == "gpu_named" else ""
        confidence = HIGH if hardware or chance.random() < 0.9 else LOW
        return Failure("signal", culprit, confidence, hardware=hardware, **common)

    def _decide(self, fault: Fault) -> tuple[set[str], Mapping[str, int], bool]:
        """The nodes that go behind the spares, how often each was suspected, and whether the job ends."""
        if self.policy == "suspicion":
            found = suspicions(self.history, self.now)
            last = [(each.signature, each.step) for each in self.history[-SAME_FAILURE_LIMIT:]]
            is_same = len(last) == SAME_FAILURE_LIMIT and bool(last[0][0]) and len(set(last)) == 1
            return {each.what for each in found.nodes}, found.times, is_same
        if self.policy == "oracle":
            broken = {sorted(each.nodes)[0] for each in self.faults if each.nodes}
            return broken, {}, fault.kind == "bug_at_step"
        return set(), {}, self.in_vain >= HOPELESS

    def _place(self, suspect: set[str], times: Mapping[str, int], fault: Fault) -> None:
        """Members keep their places; those that are suspect go behind the spares that are not."""
        spares = [each for each in self.everybody if each not in self.members and each not in suspect]
        spares.sort(key=lambda each: times.get(each, 0))
        for place, name in enumerate(self.members):
            if name not in suspect or not spares:
                continue
            self.members[place] = spares.pop(0)
            self.result.moved += 1
            broken = {each for one in self.faults for each in one.nodes} | fault.nodes
            if name not in self.moved and name not in broken:
                self.result.moved_healthy += 1
                self.result.moved_by_bugs += fault.kind.startswith("bug")
            self.moved.add(name)


def _simulated(jobs: int, seed: int) -> Iterator[tuple[str, Result]]:
    for policy in ("oracle", "suspicion", "none"):
        result = Result()
        for number in range(jobs):
            Job(policy, seed + number, result).run()
        yield policy, result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    oracle = 0.0
    heads = (
        "nodes are placed by",
        "hours wasted per job",
        "× oracle",
        "failures per job",
        "healthy nodes moved",
    )
    print(f"| {' | '.join((*heads, 'by a bug', 'jobs ended wrongly'))} |\n|{'---|' * 7}")
    for policy, found in _simulated(given.jobs, given.seed):
        wasted = found.wasted / HOUR / given.jobs
        oracle = oracle or wasted
        print(
            f"| {policy} | {wasted:.3f} | {wasted / oracle:.2f} | {found.failures / given.jobs:.2f} | "
            f"{found.moved_healthy / found.nodes:.4%} | {found.moved_by_bugs} | {found.ended_wrongly} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
