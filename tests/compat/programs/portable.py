"""A training that runs with the original, with Holdfast beside it, and with Holdfast alone. argv: a folder.

It resumes after a failure at step 3 and writes its result and the state of the learned timeouts.
"""

import json
import os
import sys
from pathlib import Path

import nvidia_resiliency_ext.fault_tolerance as ft
import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
client = ft.RankMonitorClient()
client.init_workload_monitoring()
saved = folder / "weights.pt"
weights, first = torch.load(saved) if saved.exists() else (torch.zeros(3), 1)
dist.barrier()
for step in range(first, 7):
    client.start_section("step")
    gradient = torch.full((3,), float(step + rank))
    dist.all_reduce(gradient)
    weights = weights + gradient
    client.end_section("step")
    client.send_heartbeat()
    dist.barrier()
    if rank == 0:
        torch.save((weights, step + 1), saved)
    dist.barrier()
    if step == 3 and first == 1 and rank == 1:
        os._exit(9)
client.calculate_and_set_hb_timeouts()
client.calculate_and_set_section_timeouts(selected_sections=["step"], calc_out_of_section=False)
if rank == 0:
    result = {"weights": weights.tolist(), "first": first, "client": type(client).__module__}
    (folder / "result.json").write_text(json.dumps({**result, "state": client.state_dict()}))
client.shutdown_workload_monitoring()
dist.barrier()
dist.destroy_process_group()
