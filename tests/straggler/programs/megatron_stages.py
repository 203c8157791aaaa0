"""Two stages of two ranks each, by Megatron's parallel state: the real one, or a module with the same functions.

Rank 0 prints a line of JSON: its own label before and after the state is initialised, and what the judge received.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType

import torch.distributed as dist

from holdfast.straggler import Detector
from holdfast.straggler.labels import MEGATRON, own_label

rank, real = int(sys.argv[2]), sys.argv[3] == "real"
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=4)


def initialize() -> None:
    if real:
        from megatron.core import parallel_state

        parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
        return
    state = ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: True  # type: ignore[attr-defined]
    state.get_pipeline_model_parallel_rank = lambda: rank // 2  # type: ignore[attr-defined]
    state.get_expert_model_parallel_rank = lambda: 0  # type: ignore[attr-defined]
    sys.modules[state.__name__] = state


def withheld() -> object:
    Detector.initialize(groups=MEGATRON)
    with Detector.detection_section("step"):
        pass
    reports = [Detector.generate_report() for _ in range(2)]
    exchange = Detector._session._exchange  # type: ignore[union-attr]
    Detector.shutdown()
    return reports[1] and [list(exchange.identities.labels), list(reports[1].withheld)]


found = [own_label(MEGATRON), withheld()]
initialize()
found += [own_label(MEGATRON), withheld()]
if rank == 0:
    print(json.dumps(found), flush=True)
dist.barrier()
dist.destroy_process_group()
