"""Groups from meshes of four real ranks, and what is refused. Rank 0 prints a line of JSON for each."""

from __future__ import annotations

import json
import os
import sys

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from holdfast.straggler import Detector
from holdfast.straggler.labels import labels_of

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=4)


def told(groups: object, process_group: dist.ProcessGroup | None = None) -> object:
    """The labels of the ranks, and why a report of them has no verdicts."""
    try:
        Detector.initialize(groups=groups, process_group=process_group)  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)
    given = Detector._session.settings.groups  # type: ignore[union-attr]
    ranks = range(4) if process_group is None else dist.get_process_group_ranks(process_group)
    with Detector.detection_section("step"):
        pass
    reports = [Detector.generate_report() for _ in range(2)]
    Detector.shutdown()
    return [labels_of(given, list(ranks)), reports[1] and list(reports[1].withheld)]


two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("PP", "dp_shard"))
three = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "stage", "ep"))
flat = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
unnamed = init_device_mesh("cpu", (2, 2))
for groups, process_group in (
    (two, None),
    (three, None),
    (flat, None),
    (two["PP", "dp_shard"], None),
    (two["dp_shard"], two.get_group("dp_shard")),
    (two, two.get_group("PP")),
    (two["dp_shard"], None),
    (unnamed, None),
):
    found = told(groups, process_group)
    if rank == 0:
        print(json.dumps(found), flush=True)
dist.barrier()
# torch 2.13 aborts a Python that ends while a thread of gloo releases objects; under ft_launcher the prologue waits.
os._exit(0)
