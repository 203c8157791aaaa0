"""A rank that trains small models with and without the hook of `watch_ddp`, and prints what differs. Arguments: store,
rank, ranks."""

from __future__ import annotations

import copy
import gc
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from holdfast.straggler import Detector, Statistic

STEPS = 4


class Model(nn.Module):
    """Its second branch is used in every other step only, if at all."""

    def __init__(self, both: bool, sparse: bool = False) -> None:
        super().__init__()
        self.both = both
        self.words = nn.Embedding(10, 64, sparse=sparse)
        self.first, self.second, self.last = nn.Linear(64, 512), nn.Linear(64, 512), nn.Linear(512, 10)

    def forward(self, words: torch.Tensor, step: int) -> torch.Tensor:
        branch = self.first if self.both or step % 2 == 0 else self.second
        inputs = self.words(words)
        hidden = branch(inputs) + (self.second(inputs) if self.both else 0)
        result: torch.Tensor = self.last(hidden.relu())
        return result


def gradients(
    model: DistributedDataParallel, seed: int, quiet: bool = False, keep: bool = False
) -> Iterator[list[Any]]:
    """Of all parameters, after each step; with `quiet` every other step stays on the rank."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(STEPS):
        model.zero_grad(set_to_none=not keep)
        for local in [True, False] if quiet else [False]:
            words = torch.randint(0, 10, (16,), generator=generator)
            if local:
                with model.no_sync():
                    model(words, step).square().sum().backward()
            else:
                model(words, step).square().sum().backward()
        yield [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def same(first: list[Any], second: list[Any]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(
        a is b if a is None or b is None else torch.equal(a.to_dense(), b.to_dense()) for a, b in pairs
    )


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({"both": True}, {}, {}),
    "several buckets": ({"both": True}, {"bucket_cap_mb": 0.01}, {}),
    "no_sync": ({"both": True}, {"bucket_cap_mb": 0.01}, {"quiet": True}),
    "unused parameters": ({"both": False}, {"find_unused_parameters": True, "bucket_cap_mb": 0.01}, {}),
    "static graph": ({"both": True}, {"static_graph": True}, {}),
    "views": ({"both": True}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}, {}),
    "views that are kept": ({"both": True}, {"gradient_as_bucket_view": True}, {"keep": True}),
    "sparse": ({"both": True, "sparse": True}, {}, {}),
}


def compared(rank: int) -> dict[str, Any]:
    """For each case whether all gradients are equal, and how many waits were measured."""
    found: dict[str, Any] = {}
    for name, (model, ddp, run) in CASES.items():
        torch.manual_seed(7)
        plain = Model(**model)
        watched = DistributedDataParallel(copy.deepcopy(plain), **ddp)
        Detector.initialize(scores_to_compute="individual_perf_scores", gather_on_rank0=False)
        Detector.watch_ddp(watched)
        left = gradients(DistributedDataParallel(plain, **ddp), rank, **run)
        equal = [same(*pair) for pair in zip(left, gradients(watched, rank, **run), strict=True)]
        report = Detector.generate_report()
        assert report is not None
        waits = report.local_section_summaries["ddp all-reduce"]
        assert report.section_individual_perf_scores == {}
        found[name] = [all(equal), waits[Statistic.NUM], waits[Statistic.MIN] > 0]
        Detector.shutdown()
    return found


def refused(what: Any) -> str:
    try:
        Detector.watch_ddp(what)
    except ValueError as error:
        return str(error)
    return "taken"


def mistakes() -> list[str]:
    """What is refused, and what a model may go through with its hook."""
    Detector.initialize(scores_to_compute="individual_perf_scores", gather_on_rank0=False)
    told = [refused(nn.Linear(1, 1)), refused(None)]
    other = DistributedDataParallel(nn.Linear(1, 1))
    other.register_comm_hook(None, allreduce_hook)
    told.append(refused(other))
    builtin = DistributedDataParallel(nn.Linear(1, 1))
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    told += [refused(builtin), refused(builtin)]
    model = DistributedDataParallel(nn.Linear(1, 1))
    told += [refused(model), refused(model)]
    told.append(refused(copy.deepcopy(model)))
    Detector.shutdown()
    model(torch.ones(1, 1)).backward()
    Detector.initialize(scores_to_compute="individual_perf_scores", gather_on_rank0=False)
    model(torch.ones(1, 1)).backward()  # measured for no session: the new one does not know of it
    first = Detector.generate_report()
    told.append(refused(model))
    model(torch.ones(1, 1)).backward()
    second = Detector.generate_report()
    told += [str(list(report.local_section_summaries)) for report in (first, second) if report]
    with Detector.detection_section("mine"):
        pass
    Detector.shutdown()
    Detector.initialize(scores_to_compute="individual_perf_scores", gather_on_rank0=False)
    with Detector.detection_section("ddp all-reduce"):
        pass
    told.append(refused(model))
    Detector.shutdown()
    return told


def main() -> None:
    """Print both."""
    store, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    print(json.dumps([compared(rank), mistakes()]), flush=True)
    # Models hold the group, and its threads run Python when a future ends: none of that while Python itself ends.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
