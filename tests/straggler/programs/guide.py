"""Both examples of the guide, one after the other, with their dots filled in. Rank 1 loads its data slowly.

What each rank got is printed as one line of JSON for each example.
"""

from __future__ import annotations

import json
import sys
import time

import torch.distributed as dist

from holdfast import straggler

NUM_ITERS = 21
STRAGGLER_REPORT_INTERVAL = 10


class DataLoaderClass:
    def get_next_batch(self) -> tuple[float, int]:
        time.sleep(0.002 if rank == 0 else 0.012)
        return 1.0, 0


class ModelClass:
    def __call__(self, data: float) -> float:
        return self.forward(data)

    def forward(self, data: float) -> float:
        time.sleep(0.003)
        return data


def notify(report: straggler.Report | None, stragglers: object, reports: list[object]) -> None:
    reports.append(None if report is None else [report.to_dict(), repr(stragglers)])


def with_sections(data_loader: DataLoaderClass, model: ModelClass) -> list[object]:
    reports: list[object] = []
    straggler.Detector.initialize(
        scores_to_compute=["relative_perf_scores", "individual_perf_scores"],
        gather_on_rank0=True,  # all ranks' results will be available on rank 0
    )
    for training_iter in range(NUM_ITERS):
        with straggler.Detector.detection_section("data_loading", profile_cuda=False):
            data, labels = data_loader.get_next_batch()
        with straggler.Detector.detection_section("fwd", profile_cuda=True):
            out = model(data)
        if (training_iter % STRAGGLER_REPORT_INTERVAL) == 0:
            report = straggler.Detector.generate_report()
            stragglers = None
            if rank == 0:
                stragglers = report.identify_stragglers()
            notify(report, stragglers, reports)
        del labels, out
    straggler.Detector.shutdown()
    return reports


def with_callables(data_loader: DataLoaderClass, model: ModelClass) -> list[object]:
    reports: list[object] = []
    straggler.Detector.initialize(
        scores_to_compute=["relative_perf_scores", "individual_perf_scores"],
        gather_on_rank0=True,  # all ranks' results will be available on rank 0
    )
    straggler.Detector.wrap_callables(
        callable_ids=[
            straggler.CallableId(DataLoaderClass, "get_next_batch", ignored_args=("self",)),
            straggler.CallableId(ModelClass, "forward", ignored_args=("self",)),
        ]
    )
    for training_iter in range(NUM_ITERS):
        data, labels = data_loader.get_next_batch()
        out = model(data)
        if (training_iter % STRAGGLER_REPORT_INTERVAL) == 0:
            report = straggler.Detector.generate_report()
            stragglers = None
            if rank == 0:
                stragglers = report.identify_stragglers()
            notify(report, stragglers, reports)
        del labels, out
    straggler.Detector.shutdown()
    return reports


rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
for example in (with_sections, with_callables):
    print(json.dumps(example(DataLoaderClass(), ModelClass())), flush=True)
dist.barrier()
dist.destroy_process_group()
