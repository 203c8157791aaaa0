"""Two ranks on one GPU; the last has kernels that take twice as long. Rank 0 tells what a report says."""

from __future__ import annotations

import device
import torch
import torch.distributed as dist

from holdfast.straggler import Detector

REPORTS, STEPS = 3, 40
CYCLES = 2_000_000  # of the fast rank's kernel, about a millisecond

dist.init_process_group("gloo")
rank = dist.get_rank()
times = 2 if rank == dist.get_world_size() - 1 else 1
if device.DRY:
    # What the source asks of torch; the kernels are those of the fake libcupti.
    torch.cuda.is_initialized = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: False
    from tests.straggler.kernels import fake


def work() -> None:
    if device.DRY:
        fake.launch("spin", 1_000_000 * times)
    else:
        torch.cuda._sleep(CYCLES * times)


work()
device.synchronize()
Detector.initialize(scores_to_compute=["relative_perf_scores"], gather_on_rank0=True)
for _ in range(REPORTS):
    for _ in range(STEPS if not device.DRY else 24):
        with Detector.detection_section("step"):
            work()
            device.synchronize()
    report = Detector.generate_report()
    if rank == 0:
        found = report.identify_stragglers()["straggler_gpus_relative"]
        device.mark(
            "report",
            stragglers=sorted(each.rank for each in found),
            scores={str(key): round(value, 2) for key, value in report.gpu_relative_perf_scores.items()},
            source=report.kernel_source,
            reason=report.kernel_source_reason,
        )
Detector.shutdown()
dist.destroy_process_group()
