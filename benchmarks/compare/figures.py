"""Who is compared, and what is measured of each: installation, start, heartbeats, hangs, restarts, memory, log lines.

torchrun, NVRx and Holdfast, each as a user would install it, beside one and the same torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from benchmarks import restart, supervision
from benchmarks.environments import NVRX, beside, nvrx
from benchmarks.jobs import PROGRAMS
from benchmarks.table import median

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Contender:
    """`who` is what the programs take for it. `client` is the module that ranks import, "" where there is none."""

    who: str
    name: str
    python: str
    module: str
    package: str
    client: str = ""

    @property
    def launcher(self) -> list[str]:
        """How its launcher is started."""
        return [self.python, "-m", self.module]

    @property
    def supervises(self) -> bool:
        """Whether it has heartbeats, sections and limits."""
        return bool(self.client)


@cache
def contenders() -> tuple[Contender, ...]:
    """Those that can be had here; the first call installs them. Holdfast anew: the checkout may have changed."""
    ours = beside("compare-holdfast", [str(ROOT)], anew=True)
    found = [Contender("torchrun", "torchrun", ours, "torch.distributed.run", "torch")]
    if theirs := nvrx():
        client = "nvidia_resiliency_ext.fault_tolerance"
        found.append(Contender("nvrx", NVRX, theirs[0], theirs[-1], "nvidia-resiliency-ext", client))
    client = "holdfast.fault_tolerance"
    return (*found, Contender("holdfast", "Holdfast", ours, f"{client}.launcher", "holdfast", client))


def told_by(contender: Contender, program: str, *args: str) -> dict[str, float]:
    """Run a program of ours in its environment, without a launcher; the JSON that it prints."""
    line = [contender.python, str(PROGRAMS / program), *args]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


@dataclass
class Figure:
    """One row; less is better. `values` by `Contender.who`; who is in neither has no such thing."""

    what: str
    unit: str
    values: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    """In one run at least, so that its value is of fewer runs or not there."""
    panel: str = ""
    """Its title in the plot, if it is there."""


Measured = Iterator[tuple[Figure, float]]
Part = Callable[[Contender], Measured]
FAILURES = (RuntimeError, ValueError, LookupError, subprocess.SubprocessError)
"""What measuring one contender may end with; the others, and its other figures, are measured all the same."""


def figures(contenders: tuple[Contender, ...], runs: int) -> list[Figure]:
    """All of them, medians of `runs` runs. The contenders take turns, so that a slow minute hits all."""
    measured: dict[str, Figure] = {}
    samples: dict[tuple[str, str], list[float]] = {}
    rows: dict[Part, set[str]] = {part: set() for part in PARTS}
    failed: list[tuple[Part, str]] = []
    for run in range(runs):
        for contender in contenders:
            print(f"measuring {contender.name}, {run + 1} of {runs} …", file=sys.stderr, flush=True)
            for part in PARTS:
                if run != 0 and part in ONCE:
                    continue
                try:
                    for one, value in part(contender):
                        measured.setdefault(one.what, one)
                        rows[part].add(one.what)
                        samples.setdefault((one.what, contender.who), []).append(value)
                except FAILURES as error:
                    print(f"{contender.name}, {part.__name__}: {error}", file=sys.stderr, flush=True)
                    failed.append((part, contender.who))
    for part, who in failed:
        for what in rows[part]:
            measured[what].failed.add(who)
    for (what, who), values in samples.items():
        measured[what].values[who] = median(values)
    return list(measured.values())


def installed(contender: Contender) -> Measured:
    """What it adds to an environment with torch."""
    told = told_by(contender, "installed.py", contender.package)
    yield Figure("installed beside torch: distributions", ""), told["distributions"]
    yield Figure("installed beside torch: size", "MB", panel="installed, MB"), told["bytes"] / 1e6


def imported(contender: Contender) -> Measured:
    """By a rank."""
    if contender.client:
        told = told_by(contender, "import_time.py", contender.client, "RankMonitorClient")
        yield Figure("import of the client in a rank that has torch", "ms"), 1e3 * told["seconds"]


def launched(contender: Contender) -> Measured:
    """A job of two ranks that does nothing."""
    start, end, lines = supervision.start_and_end(contender.launcher)
    yield Figure("start to the script's first line, 2 ranks", "s", panel="start, s"), start
    yield Figure("last rank done to the launcher's exit", "s"), end
    yield Figure("log lines of a job without trouble", ""), lines


def beats(contender: Contender) -> Measured:
    """What a rank pays for supervision."""
    if contender.supervises:
        told = supervision.heartbeat_costs(contender.launcher, contender.who, "idle")
        yield Figure("heartbeat, median", "µs", panel="heartbeat, µs"), told["heartbeat"]["median"]
        yield Figure("heartbeat, p99", "µs"), told["heartbeat"]["p99"]
        yield Figure("section start or end, median", "µs"), told["edge"]["median"]


def hangs(contender: Contender) -> Measured:
    """A rank hangs; its limit passes."""
    if contender.supervises:
        signalled, back = supervision.hang_delays(contender.launcher, contender.who, "heartbeat")
        yield Figure("hang: its limit passed, to the signal", "s"), signalled
        panel = "hang: limit passed to script again, s"
        yield Figure("hang: its limit passed, to the script running again", "s", panel=panel), back


def restarts(contender: Contender) -> Measured:
    """A rank is killed."""
    for ranks in (2, 4):
        what = f"kill -9 to the first all-reduce of all {ranks} restarted ranks"
        panel = f"kill -9 to all-reduce, {ranks} ranks, s"
        yield Figure(what, "s", panel=panel), restart.restarts(contender.launcher, ranks, 1)[0]


def memory(contender: Contender) -> Measured:
    """All that is no rank, of a job of 4."""
    arguments = ["torch", *([contender.who] if contender.supervises else [])]
    mebibytes, *_ = supervision.memory_and_cpu(contender.launcher, 4, *arguments)
    yield Figure("launcher and monitors of 4 ranks, PSS", "MiB", panel="supervision, MiB"), mebibytes


PARTS: tuple[Part, ...] = (installed, imported, launched, beats, hangs, restarts, memory)
ONCE = {installed, memory}
"""Parts that do not depend on the machine's speed."""
