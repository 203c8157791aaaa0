"""Agreeing over all ranks of a process group on the longest interval that any of them saw.

Collective, over the default group unless told: every rank must call it, in the same order. What counts is measured
after all have met: who came first has waited meanwhile, which is no hang. Two small all-reduces when all ranks name the
same sections; when they do not (a section that only rank 0 opens), the names are gathered first. Nothing is pickled. A
process that is the only one of its job (WORLD_SIZE) needs no process group.

Does not cover: ranks that died or do not call. As with any collective of the training, the others then wait.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import NotReady

if TYPE_CHECKING:
    import torch

_ABSENT = -1.0


def in_group() -> bool:
    """True if this process is in an initialised default process group. Loads no torch that is not loaded."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def longest_over_ranks(measure: Callable[[], Mapping[str, float]], group: Any = None) -> dict[str, float]:
    """For every name that any rank of `group` has, the greatest value of all. `measure` gives this rank's, in seconds
    and not negative; it is called twice, and of the second reading the names of the first count.

    Raises NotReady in one of several ranks whose default process group is not, or no longer, initialised.
    """
    if not in_group():
        ranks = os.environ.get("WORLD_SIZE", "1")
        if ranks != "1":
            raise NotReady(
                [f"this is one of {ranks} ranks, and the default process group is not initialised"]
            )
        return dict(measure())
    import torch
    import torch.distributed as dist

    device = _device(group)
    names = sorted(measure())
    if not _same_everywhere(names, device, group):
        names = _all_names(names, device, group)
    seconds = measure()  # only now: the collective above has waited for the slowest rank
    values = torch.tensor([seconds.get(name, _ABSENT) for name in names], dtype=torch.float64, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)
    return dict(zip(names, values.tolist(), strict=True))


def _device(group: Any) -> torch.device:
    """Where the group's tensors must live: the CPU if any of its backends serves it, else the GPU."""
    import torch
    import torch.distributed as dist

    served = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if "cpu" in served or "cuda" not in served:
        return torch.device("cpu" if "cpu" in served else served[0])
    return torch.device("cuda", torch.cuda.current_device())


def _same_everywhere(names: list[str], device: torch.device, group: Any) -> bool:
    import torch
    import torch.distributed as dist

    digest = int.from_bytes(hashlib.blake2b(json.dumps(names).encode(), digest_size=7).digest(), "big")
    extremes = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    greatest, least = extremes.tolist()
    return bool(greatest == -least)


def _all_names(names: list[str], device: torch.device, group: Any) -> list[str]:
    import torch
    import torch.distributed as dist

    raw = json.dumps(names).encode()
    size = torch.tensor([len(raw)], dtype=torch.int64, device=device)
    dist.all_reduce(size, op=dist.ReduceOp.MAX, group=group)
    padded = torch.frombuffer(bytearray(raw.ljust(int(size.item()))), dtype=torch.uint8).to(device)
    everyone = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, padded, group=group)
    union: set[str] = set()
    for one in everyone:
        union.update(json.loads(bytes(one.cpu().tolist())))
    return sorted(union)
