"""Ranks on which the detector itself fails. What each rank saw is printed as one line of JSON.

Arguments: the address, this rank, all ranks, and what fails.
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

address, rank, size, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
logging.basicConfig(level=logging.WARNING, format="LOG %(message)s")
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
LAST = rank == size - 1


def fails(*_: object, **__: object) -> NoReturn:
    raise LookupError("on purpose")


def trained() -> float:
    """As the training does between reports; collectives that do not match would show here."""
    with Detector.detection_section("step", profile_cuda=False):
        total = torch.full((3,), float(rank))
    dist.all_reduce(total)
    return float(total[0])


def shown(report: Report | None) -> object:
    return report and report.to_dict()["section_relative_perf_scores"]


def session() -> Any:
    return Detector._session


def reports(background: bool = False) -> None:
    """Three reports; in the second one part fails on one rank: the last, or rank 0."""
    Detector.initialize(background=background)
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
    Detector.shutdown()
    print(json.dumps(seen), flush=True)


def killed() -> None:
    """The last rank dies; the others continue, and know in each step whether the interval elapsed."""
    Detector.initialize(report_time_interval=0)
    seen = []
    for step in range(30):
        if step == 20 and LAST:
            os._exit(0)
        with Detector.detection_section("step", profile_cuda=False):
            pass
        report = Detector.generate_report_if_interval_elapsed()
        seen.append([report is not None, Detector.is_interval_elapsed()])
    Detector.generate_report()
    Detector.shutdown()
    print(json.dumps(seen), flush=True)
    # A thread of gloo that still releases the broken collective would abort a Python that ends (torch 2.13).
    sys.stderr.flush()
    os._exit(0)


def settings() -> None:
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
    Detector.shutdown()
    print(json.dumps([]), flush=True)


{"killed": killed, "settings": settings}.get(what, reports)()
if what != "killed":
    dist.barrier()
    dist.destroy_process_group()
