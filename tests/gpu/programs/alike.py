"""What a rank sees of the GPU, told as text so that a warm and a cold rank can be compared.

Rank 0 has the GPU; the other chooses a second one, which is not there, before it uses CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable

rank = int(os.environ["RANK"])
os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)

import device  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def count() -> object:
    return torch.cuda.device_count(), torch.cuda.is_available(), os.environ["CUDA_VISIBLE_DEVICES"]


def forked_state() -> object:
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


def pinned() -> object:
    numbers = torch.arange(1000).pin_memory()
    return numbers.is_pinned(), numbers.to("cuda", non_blocking=True).sum().item()


def workers() -> object:
    """Two of them, forked from this rank, after it has used CUDA where there is a GPU."""
    data = TensorDataset(torch.arange(64))
    loader = DataLoader(data, batch_size=16, num_workers=2, pin_memory=torch.cuda.is_available())
    return [int(batch.to(device.NAME if torch.cuda.is_available() else "cpu").sum()) for (batch,) in loader]


def random_numbers() -> object:
    torch.manual_seed(7)
    return torch.rand(2, device="cuda").tolist()


def told(look: Callable[[], object]) -> str:
    try:
        return repr(look())
    except Exception as error:
        return f"error: {type(error).__name__}: {error}".splitlines()[0]


looks = (
    (forked_state, count, streams, graphs, pinned, random_numbers, workers) if rank == 0 else (count, workers)
)
device.mark("behaviour", results={look.__name__: told(look) for look in looks})
