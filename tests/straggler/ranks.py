"""Ranks as threads of this process: a channel between them that counts what it moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Table:
    """Where the threads meet: each puts a value in, each sees the values of all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls: list[tuple[str, int]] = []
        """Kind and bytes that a rank gives, one entry for each collective."""
        self._barrier = threading.Barrier(size, timeout=60)
        self._laid: list[Any] = [None] * size

    def meet(self, rank: int, kind: str, length: int, value: T) -> list[T]:
        self._laid[rank] = (kind, value)
        self._barrier.wait()
        assert {one for one, _ in self._laid} == {kind}, "ranks make different collectives"
        seen = [one for _, one in self._laid]
        if rank == 0:
            self.calls.append((kind, length))
        self._barrier.wait()
        return seen


class ThreadChannel:
    def __init__(self, table: Table, rank: int, ranks: Sequence[int]) -> None:
        self._table = table
        self.rank = rank
        self.size = table.size
        self.ranks = ranks

    def least(self, values: list[float]) -> list[float]:
        rows = self._table.meet(self.rank, "least", 8 * len(values), values)
        assert len({len(row) for row in rows}) == 1, "ranks give different numbers of values"
        return [min(column) for column in zip(*rows, strict=True)]

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        found: bytes = self._table.meet(self.rank, "from_rank", length, payload)[root]
        assert len(found) == length
        return found

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytes | None:
        rows = self._table.meet(self.rank, "bytes_to_rank_0", length, payload.ljust(length, b"\0"))
        return b"".join(rows) if self.rank == 0 else None


def run(
    size: int, work: Callable[[ThreadChannel], T], ranks: Sequence[int] | None = None
) -> tuple[list[T], list[tuple[str, int]]]:
    """What `work` gave on each rank, and the collectives."""
    table = Table(size)
    numbers = ranks or range(size)
    with ThreadPoolExecutor(size) as pool:
        channels = [ThreadChannel(table, rank, numbers) for rank in range(size)]
        return list(pool.map(work, channels)), table.calls
