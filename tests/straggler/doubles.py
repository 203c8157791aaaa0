"""Ranks as threads of this process, with a channel that counts what it moves; and sources of kernel times."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

from holdfast.straggler.host import CAUSES, HostLosses
from holdfast.straggler.kernels.cuda_events import CudaEventSource
from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.scores import Summary

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


class SteadyHost(HostLosses):
    """A host that takes nothing, and windows of the same length: verdicts do not depend on the machine's load."""

    def __init__(self, seconds: float = 0.25) -> None:
        self.elapsed = seconds

    def take(self) -> dict[str, float]:
        return dict.fromkeys(CAUSES, 0.0)

    def close(self) -> None: ...


class Told:
    """It records when it was asked to measure."""

    name = "told"
    reason = ""

    def __init__(self, *windows: KernelWindow | Mapping[str, Summary]) -> None:
        """One of each report: a whole window, or only the kernels that compute."""
        self._windows = [one if isinstance(one, KernelWindow) else KernelWindow(one) for one in windows]
        self.calls: list[str] = []

    def start(self, section: str) -> None:
        self.calls.append(f"start {section}")

    def stop(self, late: bool = False) -> None:
        self.calls.append("stop")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def take(self) -> KernelWindow:
        return self._windows.pop(0)

    def close(self) -> None:
        self.calls.append("close")


class Gpu:
    """As much of torch.cuda as a source asks for. The GPU has come to `done` milliseconds; recording takes `now`."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, math.inf
        self.initialised, self.capturing, self.error = True, False, ""
        self.device_index = 0
        self.events = self.asked = 0

    def usable(self) -> bool:
        return self.initialised and not self.capturing

    def stream(self) -> SimpleNamespace:
        return SimpleNamespace(device_index=self.device_index)

    def event(self) -> Moment:
        self.events += 1
        return Moment(self)

    def works(self, source: CudaEventSource, section: str, milliseconds: float) -> None:
        source.start(section)
        self.now += milliseconds
        source.stop()


class Moment:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._at: float | None = None
        self._stream: SimpleNamespace | None = None

    def record(self, stream: SimpleNamespace) -> None:
        assert not self._gpu.capturing, "recorded into a graph"
        if self._gpu.error:
            raise RuntimeError(self._gpu.error)
        assert self._stream is None or self._stream.device_index == stream.device_index, (
            "moved to another GPU"
        )
        self._at, self._stream = self._gpu.now, stream

    def query(self) -> bool:
        assert not self._gpu.capturing, "asked during a capture, which ends the capture"
        self._gpu.asked += 1
        if self._gpu.error:
            raise RuntimeError(self._gpu.error)
        assert self._at is not None
        return self._at <= self._gpu.done

    def elapsed_time(self, end_event: Moment) -> float:
        assert self._at is not None and end_event._at is not None
        assert end_event._stream is self._stream, "ended on another stream"
        assert end_event.query() and self.query(), "torch raises for events that are not over"
        return end_event._at - self._at
