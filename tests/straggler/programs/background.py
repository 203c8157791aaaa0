"""Reports in the background. What each rank saw is printed as lines of JSON.

Arguments: the address, this rank, all ranks, and what to do.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time

import torch.distributed as dist

from holdfast.straggler import Detector

address, rank, size, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
logging.basicConfig(level=logging.INFO, format="LOG %(message)s")
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def sections(slow: float = 0.006, slow_rank: int = 1) -> None:
    for _ in range(3):
        with Detector.detection_section("load", profile_cuda=False):
            time.sleep(slow if rank == slow_rank else 0.002)


def finished(seconds: float = 60.0) -> None:
    """Wait until the thread has nothing to do."""
    background = Detector._session._background  # type: ignore[union-attr]
    assert background is not None
    with background._changed:
        settled = background._changed.wait_for(
            lambda: background._ended or not (background._waiting or background._busy), seconds
        )
    assert settled


def reports() -> None:
    """Each report is returned by the next call; at the end nothing is left of thread and group; and once more."""
    group = dist.new_group([2, 0], sort_ranks=False)  # type: ignore[no-untyped-call]
    for _ in range(2):
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            continue
        Detector.initialize(background=True, process_group=group)
        returned = []
        for _ in range(3):
            sections(0.05, 0)  # a busy machine may make the other ranks' 2 ms ten times as long
            returned.append(Detector.generate_report())
            finished()
        Detector.shutdown()
        threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
        tell(
            scores=[report and report.section_relative_perf_scores["load"] for report in returned],
            threads=threads,
        )


def interval() -> None:
    """The same steps on all ranks, with reports of the caller's own before; what a call costs."""
    Detector.initialize(background=True, report_time_interval=1e-6 if rank else 0.02)
    seen, costs, got = [], [], 0
    for step in range(60):
        sections()
        if step in (3, 5):
            Detector.generate_report()
        began = time.perf_counter()
        report = Detector.generate_report_if_interval_elapsed()
        if Detector.is_interval_elapsed() and step > 20:
            costs.append(time.perf_counter() - began)
        got += report is not None
        seen.append(Detector.is_interval_elapsed())
    Detector.shutdown()
    tell(seen=seen, got=got, cost_ms=sorted(costs)[len(costs) // 2] * 1e3 if costs else None)


def last() -> None:
    """Shutdown right after a report was asked for, gathered and not."""
    made = []
    for number in range(20):
        Detector.initialize(background=True, gather_on_rank0=number % 2 == 0)
        sections()
        Detector.generate_report()
        background = Detector._session._background  # type: ignore[union-attr]
        Detector.shutdown()
        assert background is not None
        made.append(background.newest() is not None)
    tell(reports=made)


def killed() -> None:
    """The last rank dies in the middle of an exchange; the others continue, and end."""
    Detector.initialize(background=True)
    sections()
    Detector.generate_report()
    finished()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sections()
    Detector.generate_report()
    finished()
    later = [Detector.generate_report() for _ in range(3)]
    began = time.monotonic()
    Detector.shutdown()
    tell(later=[report is not None for report in later], shutdown=time.monotonic() - began)


def stopped() -> None:
    """The last rank is stopped; the others are in a collective when they end."""
    Detector.initialize(background=True)
    sections()
    Detector.generate_report()
    finished()
    if rank == size - 1:
        tell(pid=os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    sections()
    began = time.monotonic()
    Detector.generate_report()
    if "shutdown" in what:
        Detector._session._background.close(0.2)  # type: ignore[union-attr]
        Detector.shutdown()
        tell(took=time.monotonic() - began)
    if "destroy" in what:
        dist.destroy_process_group()
    if "raise" in what:
        raise RuntimeError("the training failed")


if what == "together":
    for part in (reports, interval, last):
        part()
    dist.barrier()
    dist.destroy_process_group()
else:
    killed() if what == "killed" else stopped()
tell(ended=True)
