"""Report what this rank observes of the GPU, as text, so that a warm and a cold rank can be compared.

Rank 0 has the GPU. Rank 1 selects a second GPU, which does not exist, before it uses CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable

rank = int(os.environ["RANK"])
os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)

import gpu_device  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def devices() -> object:
    return torch.cuda.device_count(), torch.cuda.is_available()


def state_after_fork() -> object:
    return torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()


def streams() -> object:
    side = torch.cuda.Stream()
    numbers = torch.arange(1 << 20, device="cuda", dtype=torch.float64)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        total = numbers.sum()
    torch.cuda.current_stream().wait_stream(side)
    return total.item()


def graphs() -> object:
    number, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        doubled = number * 2
    number.fill_(21)
    graph.replay()
    return doubled.tolist()


def pinned_memory() -> object:
    numbers = torch.arange(1000).pin_memory()
    return numbers.is_pinned(), numbers.to("cuda", non_blocking=True).sum().item()


def random_numbers() -> object:
    torch.manual_seed(7)
    return torch.rand(2, device="cuda").tolist()


def loader_workers() -> object:
    """Two workers, forked after this rank has used CUDA."""
    has_gpu = torch.cuda.is_available()
    loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=16, num_workers=2, pin_memory=has_gpu)
    return [int(batch.to("cuda" if has_gpu else "cpu").sum()) for (batch,) in loader]


def describe(observe: Callable[[], object]) -> str:
    try:
        return repr(observe())
    except Exception as error:
        return f"error: {type(error).__name__}: {error}".splitlines()[0]


with_gpu = (state_after_fork, devices, streams, graphs, pinned_memory, random_numbers, loader_workers)
gpu_device.mark(
    "observed", observed={each.__name__: describe(each) for each in (with_gpu if rank == 0 else with_gpu[:2])}
)
