"""Two stages of two ranks each, by Megatron's parallel state.

Rank 0 prints a line of JSON: its own label before and after the state is initialised, and what the judge received.
"""

from __future__ import annotations

import json
import sys

import torch.distributed as dist
from megatron.core import parallel_state

from holdfast.straggler import Detector
from holdfast.straggler.labels import MEGATRON, own_label

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=4)


def withheld() -> object:
    Detector.initialize(groups=MEGATRON)
    with Detector.detection_section("step"):
        pass
    reports = [Detector.generate_report() for _ in range(2)]
    exchange = Detector._session._exchange  # type: ignore[union-attr]
    Detector.shutdown()
    return reports[1] and [list(exchange.identities.labels), list(reports[1].withheld)]


found = [own_label(MEGATRON), withheld()]
parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
found += [own_label(MEGATRON), withheld()]
if rank == 0:
    print(json.dumps(found), flush=True)
dist.barrier()
dist.destroy_process_group()
