"""Reports that need no other rank, then within a group of one.

What each rank got is printed as one line of JSON for each part.
"""

from __future__ import annotations

import json
import sys

import torch.distributed as dist

from holdfast.straggler import Detector

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)


def section() -> None:
    with Detector.detection_section("step", profile_cuda=False):
        pass


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
    Detector.shutdown()
    return [report and report.section_individual_perf_scores for report in reports]


def in_a_group() -> object:
    groups = [dist.new_group([one]) for one in range(2)]
    try:
        Detector.initialize(process_group=groups[1 - rank])
        refused = "no"
    except ValueError as error:
        refused = str(error).partition(", not")[0]
    Detector.initialize(process_group=groups[rank], node_name=f"node-{rank}")
    section()
    report = Detector.generate_report()
    Detector.shutdown()
    assert report is not None
    return [refused, report.rank, report.section_relative_perf_scores, report.rank_to_node]


for part in (alone, in_a_group):
    print(json.dumps(part()), flush=True)
dist.barrier()
dist.destroy_process_group()
