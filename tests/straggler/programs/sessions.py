"""Ranks that need no other, are in groups of one, differ in their settings, or on which the detector itself fails.

What each rank saw is printed as lines of JSON, a pair of part and value; what it logs begins with LOG and the part.
Arguments: the address, this rank, all ranks. In the last part the last rank dies.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from holdfast.straggler import Detector, Report

address, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = logging.StreamHandler()
logging.basicConfig(level=logging.WARNING, handlers=[log])
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
LAST = rank == size - 1


def fails(*_: object, **__: object) -> NoReturn:
    raise LookupError("on purpose")


def trained() -> float:
    """As the training does between reports; collectives that do not match would show here."""
    section()
    total = torch.full((3,), float(rank))
    dist.all_reduce(total)
    return float(total[0])


def section() -> None:
    with Detector.detection_section("step", profile_cuda=False):
        pass


def shown(report: Report | None) -> object:
    return report and report.to_dict()["section_relative_perf_scores"]


def session() -> Any:
    return Detector._session


def alone() -> object:
    """Only rank 0 asks for reports: one collective, and this job would hang forever."""
    Detector.initialize(["individual_perf_scores"], gather_on_rank0=False, report_time_interval=1e-6)
    reports = []
    if rank == 0:
        for _ in range(18):
            section()
            reports.append(Detector.generate_report_if_interval_elapsed())
        section()
        reports.append(Detector.generate_report())
    return [report and report.section_individual_perf_scores for report in reports]


def groups() -> object:
    groups = [dist.new_group([one]) for one in range(size)]
    try:
        Detector.initialize(process_group=groups[rank - 1])
        refused = "no"
    except ValueError as error:
        refused = str(error).partition(", not")[0]
    Detector.initialize(process_group=groups[rank], node_name=f"node-{rank}")
    section()
    report = Detector.generate_report()
    assert report is not None
    return [refused, report.rank, report.section_relative_perf_scores, report.rank_to_node]


def failing(what: str) -> object:
    """Three reports; in the second one part fails on one rank: the last, or rank 0."""
    Detector.initialize()
    part = {
        "take": (session().sections, "take"),
        "kernels": (session()._capture, "take"),
        "scores": (session()._scoring, "own"),
        "verdicts": (session().verdicts, "of"),
        "keep": (session(), "_keep"),
    }[what]
    seen: list[object] = []
    for number in range(3):
        total = trained()
        if number == 1 and (LAST if what in ("take", "kernels", "scores") else rank == 0):
            setattr(*part, fails)
        elif number == 2 and part[1] in vars(part[0]):
            delattr(*part)
        seen.append([shown(Detector.generate_report()), total])
    return seen


def settings() -> object:
    """Rank 0 is the first to initialise; the last has other settings. Initialising waits for no rank."""
    for turn in range(3):
        if rank == turn:
            if LAST:
                Detector.initialize("relative_perf_scores", report_time_interval=7, node_name="other")
            else:
                Detector.initialize(node_name=f"node-{rank}")
        dist.barrier()
    Detector.shutdown()
    Detector.initialize()
    return None


def killed() -> object:
    """The last rank dies; the others continue, and know in each step whether the interval elapsed."""
    Detector.initialize(report_time_interval=0)
    seen = []
    for step in range(30):
        if step == 20 and LAST:
            os._exit(0)
        section()
        report = Detector.generate_report_if_interval_elapsed()
        seen.append([report is not None, Detector.is_interval_elapsed()])
    Detector.generate_report()
    return seen


for name in ("alone", "groups", "take", "kernels", "scores", "verdicts", "keep", "settings", "killed"):
    log.setFormatter(logging.Formatter(f"LOG {name} %(message)s"))
    made = globals()[name]() if name in globals() else failing(name)
    Detector.shutdown()
    print(json.dumps([name, made]), flush=True)
# A thread of gloo that still releases the broken collective would abort a Python that ends (torch 2.13).
sys.stderr.flush()
os._exit(0)
