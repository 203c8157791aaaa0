"""Both examples of the guide, one after the other, with their dots filled in. Rank 1 loads its data slowly.

Each rank prints a line of JSON for each example: its reports with their stragglers, and whether it ever got a report.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch.distributed as dist

from tests.compat.documents import CALLABLES, SECTIONS, filled_in


class DataLoaderClass:
    def get_next_batch(self) -> tuple[float, int]:
        time.sleep(0.002 if rank == 0 else 0.05)
        return 1.0, 0


class ModelClass:
    def __call__(self, data: float) -> float:
        return self.forward(data)

    def forward(self, data: float) -> float:
        time.sleep(0.003)
        return data


def trained(example: str) -> list[object]:
    reports: list[object] = []
    got: list[bool] = []

    def notify(stragglers: object) -> None:
        reports.append([values["report"].to_dict(), repr(stragglers)])

    values: dict[str, Any] = {
        "DataLoaderClass": DataLoaderClass,
        "ModelClass": ModelClass,
        "STRAGGLER_REPORT_INTERVAL": 10,
        "data_loader": DataLoaderClass(),
        "maybe_notify_user": notify,
        "model": ModelClass(),
        "num_iters": 21,
        "rank": rank,
        "work": lambda: got.append(values.get("report") is not None),
    }
    exec(filled_in(example).replace("nvidia_resiliency_ext", "holdfast"), values)
    return [reports, any(got)]


rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
for example in (SECTIONS, CALLABLES):
    print(json.dumps(trained(example)), flush=True)
dist.barrier()
dist.destroy_process_group()
