"""Two ranks on one GPU; kernels of the last rank take twice as long. Rank 0 reports what the detector finds."""

from __future__ import annotations

import gpu_device
import torch
import torch.distributed as dist

from holdfast.straggler import Detector

REPORTS, STEPS = 3, 30
CYCLES = 200_000  # of a kernel of rank 0: about 0.1 ms, less than the time slice of a shared GPU

dist.init_process_group("gloo")
rank = dist.get_rank()
times = 2 if rank == dist.get_world_size() - 1 else 1
if gpu_device.DRY:
    from tests.straggler.kernels import fake

    fake.make_torch_use_cuda()


def train() -> None:
    if gpu_device.DRY:
        fake.launch("spin", 1_000_000 * times)
    else:
        torch.cuda._sleep(CYCLES * times)
        torch.cuda.synchronize()


train()
Detector.initialize(scores_to_compute=["relative_perf_scores"], gather_on_rank0=True)
for _ in range(REPORTS):
    for _ in range(STEPS):
        with Detector.detection_section("step"):
            train()
    report = Detector.generate_report()
    if rank == 0:
        found = report.identify_stragglers()["straggler_gpus_relative"]
        scores = {str(each): round(score, 2) for each, score in report.gpu_relative_perf_scores.items()}
        gpu_device.mark(
            "report",
            stragglers=sorted(each.rank for each in found),
            scores=scores,
            source=report.kernel_source,
            reason=report.kernel_source_reason,
        )
Detector.shutdown()
dist.destroy_process_group()
