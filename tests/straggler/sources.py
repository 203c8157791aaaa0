"""A source of kernel times that receives what it measures, and a GPU whose CUDA events have the times of the test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace

from holdfast.straggler.kernels.cuda_events import CudaEventSource
from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.scores import Summary


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
