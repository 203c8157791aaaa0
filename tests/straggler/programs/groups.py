"""Groups of four real ranks, from meshes and from Megatron's parallel state, and what is refused.

Rank 0 prints a line of JSON for each mesh. Then, where Megatron is installed, one for two stages of two ranks: its own
label before and after the state is initialised, each with what the judge received.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from holdfast.straggler import Detector
from holdfast.straggler.labels import MEGATRON, labels_of, own_label

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=4)


def two_reports() -> tuple[list[str], list[str]] | None:
    """The labels of the ranks on rank 0, and why the second report has no verdicts."""
    with Detector.detection_section("step"):
        pass
    reports = [Detector.generate_report() for _ in range(2)]
    exchange = Detector._session._exchange  # type: ignore[union-attr]
    Detector.shutdown()
    return None if reports[1] is None else (list(exchange.identities.labels), list(reports[1].withheld))


def of_mesh(groups: object, process_group: dist.ProcessGroup | None = None) -> object:
    try:
        Detector.initialize(groups=groups, process_group=process_group)  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)
    given = Detector._session.settings.groups  # type: ignore[union-attr]
    ranks = range(4) if process_group is None else dist.get_process_group_ranks(process_group)
    told = two_reports()
    return [labels_of(given, list(ranks)), told and told[1]]


def of_megatron() -> object:
    Detector.initialize(groups=MEGATRON)
    return two_reports()


two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("PP", "dp_shard"))
three = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "stage", "ep"))
flat = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
unnamed = init_device_mesh("cpu", (2, 2))
found = [
    of_mesh(groups, process_group)
    for groups, process_group in (
        (two, None),
        (three, None),
        (flat, None),
        (two["PP", "dp_shard"], None),
        (two["dp_shard"], two.get_group("dp_shard")),
        (two, two.get_group("PP")),
        (two["dp_shard"], None),
        (unnamed, None),
    )
]
if importlib.util.find_spec("megatron") is not None:
    sys.modules["wandb"] = None  # type: ignore[assignment]  # Megatron would load it, and it makes folders
    from megatron.core import parallel_state

    before = [own_label(MEGATRON), of_megatron()]
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    found.append([*before, own_label(MEGATRON), of_megatron()])
if rank == 0:
    print(json.dumps(found), flush=True)
dist.barrier()
# torch 2.13 aborts a Python that ends while a thread of gloo releases objects; under ft_launcher the prologue waits.
os._exit(0)
