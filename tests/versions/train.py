"""One training for every supported torch: all-reduce, checkpoints, sections, learned timeouts, straggler scores.

Each rank writes "CYCLE STEP" after each step to a file of its own, and rank 0 prints the result as one line of JSON.
Does not cover: GPUs; it runs on the CPU with gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast import Loop, straggler
from holdfast.testing import Faults

parser = argparse.ArgumentParser()
parser.add_argument("--dir", type=Path, required=True)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--step-seconds", type=float, default=0.01)
parser.add_argument("--slow-rank", type=int, help="rank whose section data_loading takes ten times as long")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, cycle = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
weights, first = torch.zeros(8), 1
checkpoint = args.dir / "checkpoint.pt"
if checkpoint.exists():
    saved = torch.load(checkpoint, weights_only=True)
    weights, first = saved["weights"], saved["step"] + 1
dist.barrier()  # all ranks have read it before one writes the next

slow = set()
straggler.Detector.initialize(scores_to_compute=["relative_perf_scores"], gather_on_rank0=True)
steps = (args.dir / f"steps-{rank}").open("a", buffering=1)
with Loop() as loop, Faults.from_env() as faults:
    for step in range(first, args.steps + 1):
        with loop.section("step"):
            with straggler.Detector.detection_section("data_loading", profile_cuda=False):
                time.sleep(args.step_seconds * (10 if rank == args.slow_rank else 1))
                faults.at_step(step)
            gradient = weights - torch.full((8,), float(step * (rank + 1)))
            dist.all_reduce(gradient)
            weights -= 0.05 * gradient
        print(cycle, step, file=steps)
        stop = loop.step(step)
        if rank == 0 and (stop or step % 5 == 0):
            with loop.section("checkpointing"):
                torch.save({"weights": weights, "step": step}, checkpoint.with_suffix(".tmp"))
                checkpoint.with_suffix(".tmp").replace(checkpoint)
        if stop:
            break
        if step % 10 == 0 and (report := straggler.Detector.generate_report()):
            found = report.identify_stragglers()["straggler_sections_relative"]
            slow = {each.rank for ranks in found.values() for each in ranks}
    else:
        loop.finished()
    if rank == 0 and cycle == "0":
        loop.client.end_all_sections()
    learned = loop.client.calculate_and_set_section_timeouts(
        ["step"], calc_out_of_section=False, skip_if_not_ready=True
    )
    result = {
        "weights": weights.tolist(),
        "slow": sorted(slow),
        "learned": learned,
        "limits": loop.client.section_timeouts.section,
    }
straggler.Detector.shutdown()
if rank == 0:
    print(json.dumps(result), flush=True)
dist.destroy_process_group()
