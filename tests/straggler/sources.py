"""A source of kernel times that receives what it measures, and records when it was asked to measure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.scores import Summary


class Told:
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
