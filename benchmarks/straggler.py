"""What straggler detection costs the training: sections, GPU kernel records, reports. The peer is NVRx 0.4.1.

Does not cover: what CUPTI costs a launch, and what it costs to be attached; both need a GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.environments import NVRX, nvrx
from benchmarks.table import Row, median

FAKES = Path(__file__).resolve().parent.parent / "tests" / "straggler" / "kernels" / "native"
RANKS = 16_384


def straggler(runs: int, peer: bool) -> list[Row]:
    """A detection section: measured, skipped, without a name, as a wrapped callable.

    The peer needs a libcupti even where sections are timed on the host only; it gets the fake one.
    """
    theirs = nvrx() if peer else None
    program = "section_cost.py"
    with _fake_libraries() if theirs else nullcontext("") as folder:
        fake = {"LD_LIBRARY_PATH": folder}
        seen = jobs.by_turns(
            runs,
            ours=partial(_figures, sys.executable, "section", program, "holdfast"),
            peer=theirs and partial(_figures, theirs[0], "section", program, "nvidia_resiliency_ext", **fake),
        )

    def row(text: str, what: str, limit: float | None = None) -> Row:
        ours, peers = ([one[what] for one in seen[who]] for who in ("ours", "peer"))
        return Row(text, "µs", ours, peers, NVRX, limit)

    return [
        row("straggler section, median", "section", 0.6),
        row("straggler section that is skipped, median", "skipped", 0.3),
        row("straggler section, every 10th measured, median", "every 10th"),
        row("straggler section without a name, median", "unnamed"),
        row("wrapped callable, more than the call itself, median", "wrapped"),
    ]


def kernel_records(runs: int, peer: bool) -> list[Row]:
    """The record of a GPU kernel, through a fake libcupti, whose own cost is taken off: no GPU is needed."""
    theirs = nvrx() if peer else None

    def cost(python: str, who: str) -> float:
        seen = _figures(python, "client", "kernel_records.py", who, LD_LIBRARY_PATH=folder)
        return median(seen["client"]) - median(seen["alone"])

    with _fake_libraries() as folder:
        seen = jobs.by_turns(
            runs,
            ours=partial(cost, sys.executable, "holdfast"),
            peer=theirs and partial(cost, theirs[0], "nvrx"),
        )
    return [Row("GPU kernel record, through a fake libcupti", "ns", seen["ours"], seen["peer"], NVRX, 100)]


def straggler_reports(runs: int, peer: bool) -> list[Row]:
    """A report of 5 sections and 500 kernels: on rank 0 of a simulated job, and between two real gloo ranks.

    The peer is NVRx's `ReportGenerator` on the same summaries; it makes no verdicts.
    """
    theirs = nvrx() if peer else None
    seen = jobs.by_turns(
        runs,
        many=partial(_many_ranks, sys.executable, "holdfast"),
        two=partial(_ranks, sys.executable, 2, "straggler_reports.py", "holdfast"),
        peer_many=theirs and partial(_many_ranks, theirs[0], "nvrx"),
        peer_two=theirs and partial(_ranks, theirs[0], 2, "straggler_reports.py", "nvrx"),
    )

    def row(text: str, unit: str, job: str, what: str, scale: float = 1, limit: float | None = None) -> Row:
        ours, peers = ([one[what] * scale for one in seen[who]] for who in (job, f"peer_{job}"))
        return Row(text, unit, ours, peers, NVRX, limit)

    where, first = f"rank 0 of {RANKS:,} simulated ranks", "first straggler report, received by"
    return [
        row(f"straggler report, {where}", "ms", "many", "steady_ms", limit=250),
        row(f"first straggler report, {where}", "ms", "many", "first_ms"),
        row(f"{first} every other rank", "kB", "many", "first_received_others", 1e-3, 15),
        row(f"{first} {where}", "MB", "many", "first_received_rank_0", 1e-6, 30),
        row(f"straggler reports, extra memory of {where}", "MB", "many", "extra_mb", limit=100),
        row("straggler report, 2 gloo ranks, median", "ms", "two", "steady_ms", limit=3),
    ]


def _line(python: str, program: str, *arguments: str) -> list[str]:
    return [python, "-W", "ignore", str(jobs.PROGRAMS / program), *arguments]


def _figures(python: str, first: str, program: str, *arguments: str, **variables: str) -> Any:
    """What one run of the program prints, a JSON object that begins with the key `first`."""
    return jobs.figures(_line(python, program, *arguments), first, variables)


def _many_ranks(python: str, who: str) -> Any:
    """Of rank 0 of one run of a simulated job."""
    return _figures(python, "first_ms", "straggler_reports.py", who, str(RANKS))


def _ranks(python: str, count: int, program: str, argument: str) -> Any:
    """What rank 0 of one run of real ranks prints."""
    place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port())}
    with jobs.Job() as job:
        line = _line(python, program, argument)
        ranks = [
            job.start(line, {**place, "RANK": str(rank)}, stdout=subprocess.PIPE) for rank in range(count)
        ]
        told = [rank.communicate(timeout=300)[0] for rank in ranks]
    if codes := [rank.returncode for rank in ranks if rank.returncode]:
        raise RuntimeError(f"{argument}: ranks ended with {codes}")
    return json.loads(told[0].splitlines()[-1])


@contextmanager
def _fake_libraries() -> Iterator[str]:
    """A folder with the fake libraries of the tests, under the names by which both look for them."""
    with tempfile.TemporaryDirectory() as folder:
        for source, name in (("fake_cuda.c", "libcuda.so.1"), ("fake_cupti.c", "libcupti.so.12")):
            script = Path(folder, f"{name}.map")
            script.write_text(f"{name} {{ global: cu*; fake_*; local: *; }};\n")
            link = [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-ldl", "-lpthread"]
            gcc = ["gcc", "-O2", "-fPIC", "-shared", str(FAKES / source), "-o", f"{folder}/{name}", *link]
            subprocess.run(gcc, check=True)
        yield folder
