"""Run directories with straggler reports of jobs that never ran: the seed decides all figures."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from holdfast.journal.event import encode
from holdfast.straggler import Report
from holdfast.straggler.record import KIND, record_of
from holdfast.straggler.report import Verdict
from tests.journal.story import START

PER_NODE = 8
EVERY = 300.0
"""Seconds between reports."""


def report(
    ranks: int,
    slow: dict[int, float] | None = None,
    *,
    gpu: bool = True,
    sections: tuple[str, ...] = ("data_loading", "fwd"),
    seed: int = 0,
    nan: tuple[int, ...] = (),
    **changes: Any,
) -> Report:
    """A report in which `slow` ranks take so many times as long, and have verdicts."""
    slow = slow or {}
    chance = random.Random(seed)

    def scores(noise: float, of_slow: bool = True) -> dict[int, float]:
        times = [(slow.get(rank, 1.0) if of_slow else 1.0) * chance.gauss(1, noise) for rank in range(ranks)]
        best = min(times)
        return {rank: math.nan if rank in nan else best / time for rank, time in enumerate(times)}

    nodes = {rank: f"gpu-{rank // PER_NODE:04}" for rank in range(ranks)}
    empty = dict.fromkeys(range(ranks), math.nan)
    fields: dict[str, Any] = {
        "gpu_relative_perf_scores": scores(0.01) if gpu else empty,
        "section_relative_perf_scores": {name: scores(0.02, not gpu and not n) for n, name in enumerate(sections)},
        "gpu_individual_perf_scores": scores(0.01) if gpu else empty,
        "section_individual_perf_scores": {name: scores(0.02, False) for name in sections},
        "rank_to_node": nodes,
        "local_section_summaries": {},
        "local_kernel_summaries": {},
        "generate_report_elapsed_time": 4.2,
        "gather_on_rank0": True,
        "rank": 0,
        "kernel_source": "cupti" if gpu else "none",
        "kernel_source_reason": "" if gpu else "no GPU",
        "kernel_records": 1_204_332 if gpu else 0,
        "gpu_time_scored": 0.98 if gpu else math.nan,
        "_verdicts": tuple(verdict(rank, nodes[rank], factor, gpu, ranks) for rank, factor in slow.items()),
    }  # fmt: skip
    return Report(**{**fields, **changes})


def verdict(rank: int, node: str, slowdown: float, gpu: bool = True, ranks: int = 8) -> Verdict:
    what = "kernels take" if gpu else "section data_loading takes"
    evidence = (
        f"{what} {slowdown - 1:.0%} longer than on the median of {ranks - 1} comparable ranks"
    ).replace("%", " %")
    kind, section = ("GPU", None) if gpu else ("section", "data_loading")
    return Verdict(rank, node, (rank,), kind, slowdown, 3, evidence, section)


def line(number: int, at: float, told: Report, cycle: int = 0, **more: Any) -> bytes:
    """The journal's line of a report; `at` is seconds since the beginning."""
    fields = {"cycle": cycle, "report": number, **more, **record_of(told)}
    return encode(KIND, fields, t=START + at, mono=100.0 + at, node="gpu-0000")


def job(run_dir: Path, ranks: int, reports: int = 12, gpu: bool = True, restart: int | None = 7) -> Path:
    """A run in which a rank becomes slow with the fifth report, at night, and a node with the ninth."""
    run_dir.mkdir(parents=True, exist_ok=True)
    culprit = min(ranks - 1, 76)
    lines, at = [], 0.0
    for number in range(1, reports + 1):
        slow = {culprit: 1.31} if number >= 5 else {}
        if number >= 9 and ranks > 64:
            slow |= dict.fromkeys(range(40, 44), 1.22)
        again = restart is not None and number > restart
        at += EVERY + (900.0 if number - 1 == restart else random.Random(number).uniform(-20, 20))
        own = number - (restart or 0) if again else number
        lines.append(line(own, at, report(ranks, slow, gpu=gpu, seed=number), int(again)))
    (run_dir / "journal-gpu-0000.rank-0.jsonl").write_bytes(b"".join(lines))
    return run_dir
