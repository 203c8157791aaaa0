"""Memory growth of one launcher over hundreds of restarts, each with an incident report.

Two ranks without torch, of which one ends with 3 after a moment. The launcher's anonymous memory is read after restart
20 and then every 50 restarts, without warm start and with it.
By itself: `python benchmarks/restart_memory.py [--restarts N]` also prints each sample.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from benchmarks.launchers import HOLDFAST, command, environment
from benchmarks.table import Row, markdown

RESTARTS = 520
SETTLED, EVERY = 20, 50  # restarts before the first sample, and between two
ALLOWED = 1.0  # MB over 500 restarts
WAYS = {"without warm start": ("--ft-warm-start", "off"), "with warm start": ()}


@dataclass(frozen=True)
class Sample:
    """The launcher after so many restarts; memory in MB."""

    restarts: int
    memory: float
    descriptors: int
    threads: int

    def __str__(self) -> str:
        counts = f"{self.descriptors} descriptors, {self.threads} threads"
        return f"{self.restarts:4} restarts: {self.memory:8.2f} MB, {counts}"


def sample(pid: int, restarts: int) -> Sample:
    """What this process holds now. Memory that it shares with its forks counts in full."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    memory = sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024 / 1e6
    process = psutil.Process(pid)
    return Sample(restarts, memory, process.num_fds(), process.num_threads())


def samples(restarts: int, *options: str) -> tuple[list[Sample], int]:
    """The samples of one launcher, and how many incident reports it wrote."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        options = (*options, "--max-restarts", str(restarts), "--ft-run-dir", folder)
        found: list[Sample] = []
        launcher = command(HOLDFAST, 2, "exits.py", options=options)
        with (
            open(os.path.join(folder, "stderr"), "w") as log,
            subprocess.Popen(
                launcher, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            for line in process.stdout or ():
                cycle = int(line.split()[1]) if line.startswith("cycle ") else 0
                if cycle >= SETTLED and (cycle - SETTLED) % EVERY == 0:
                    found.append(sample(process.pid, cycle))
        return found, len(list(Path(folder).glob("**/incidents/*")))


def growth(found: list[Sample]) -> float:
    """MB from the first sample to the last."""
    return found[-1].memory - found[0].memory


def measure(runs: int) -> list[Row]:
    """One run of each: memory does not depend on the machine's speed."""
    del runs
    return [_row(way, *samples(RESTARTS, *options)) for way, options in WAYS.items()]


def _row(way: str, found: list[Sample], reports: int) -> Row:
    restarts, grown = found[-1].restarts - found[0].restarts, growth(found)
    what = f"growth of the launcher over {restarts} restarts with incident reports, {way}"
    note = f"{found[0].memory:.1f} MB after {found[0].restarts}; {reports} reports"
    return Row(what, "MB", grown, aim="≤ 1", reached=grown <= ALLOWED, note=note)


def main() -> None:
    """Measure, and print the samples and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--restarts", type=int, default=RESTARTS, help=f"of each launcher (default {RESTARTS})"
    )
    given = parser.parse_args()
    rows = []
    for way, options in WAYS.items():
        found, reports = samples(given.restarts, *options)
        print(way, *found, sep="\n", flush=True)
        rows.append(_row(way, found, reports))
    print(markdown(rows))


if __name__ == "__main__":
    main()
