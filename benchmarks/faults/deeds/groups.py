"""Collectives in which one rank does something else than the rest."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point


@deed("skipped", place="collective")
def _(point: Point, tensor: torch.Tensor) -> None:
    pass


@deed("one_more", place="collective")
def _(point: Point, tensor: torch.Tensor) -> None:
    dist.all_reduce(torch.zeros(1024))
    dist.all_reduce(tensor)


@deed("other_operation", place="collective")
def _(point: Point, tensor: torch.Tensor) -> None:
    dist.broadcast(tensor, point.rank)


@deed("other_size", place="collective")
def _(point: Point, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor.repeat(4))


@deed("other_type", place="collective")
def _(point: Point, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor.to(torch.float32))


@deed("other_order", place="joint")
def _(point: Point, tensor: torch.Tensor, group: Any) -> None:
    both = [lambda: dist.all_reduce(torch.zeros(64)), lambda: dist.broadcast(torch.zeros(8), 0)]
    for each in reversed(both) if point.mine else both:
        each()


@deed("left_out_of_group", place="joint")
def _(point: Point, tensor: torch.Tensor, group: Any) -> None:
    if not point.mine:
        dist.all_reduce(torch.zeros(8), group=group)


@deed("never_received", place="joint")
def _(point: Point, tensor: torch.Tensor, group: Any) -> None:
    _around(sends=True, receives=not point.mine)


@deed("never_sent", place="joint")
def _(point: Point, tensor: torch.Tensor, group: Any) -> None:
    _around(sends=not point.mine, receives=True)


@deed("uneven_data", place="loop")
def _(point: Point) -> None:
    """The program's loop asks for it."""


def _around(*, sends: bool, receives: bool) -> None:
    """Each rank's tensor to the next one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    works = []
    if sends:
        works.append(dist.isend(torch.full((4,), float(rank)), (rank + 1) % world))
    if receives:
        works.append(dist.irecv(torch.empty(4), (rank - 1) % world))
    for work in works:
        if work is not None:
            work.wait()
