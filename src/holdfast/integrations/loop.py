"""`Loop`: supervision, preemption and the finished flag for a plain training loop, in a few lines.

    with Loop() as loop:
        for step in range(start, steps):
            train(step)
            stop = loop.step(step + 1)              # a heartbeat; True on all ranks after the same step
            if stop or (step + 1) % 100 == 0:
                with loop.section("checkpointing"):
                    save(step + 1)
            if stop:
                break
        else:
            loop.finished()

What always holds: `step` takes a microsecond or two as long as nobody was told to stop, and never raises because
supervision failed; without `ft_launcher` everything works and nobody watches. Does not cover: preemption of several
ranks without `ft_launcher` (they would have to ask each other in every step): the signal ends them as before.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from holdfast.callbacks.completion import create_flag, flag_path
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.fault_tolerance.client import Section
from holdfast.fault_tolerance.stop import StopPoint, position

__all__ = ["Loop"]

log = logging.getLogger("holdfast.integrations.loop")


class Loop:
    """One training loop of this process, as a context manager; make a new one for another loop.

    `signals` ask for a stop, besides what the launcher itself is told. Their handlers stay after a stop was asked for:
    schedulers signal more than once. Entering raises RankMonitorClientError if another client of this process is in
    use; then share that one and use `StopPoint` (docs/signals-and-preemption.md).
    """

    def __init__(self, signals: Sequence[int] = (signal.SIGTERM,)) -> None:
        self.client = RankMonitorClient(required=False)
        """For sections, marks and learned limits of your own."""
        self.stopped = False
        """Whether `step` has said that all ranks stop."""
        self._signals = tuple(signals)
        self._rank = int(os.environ.get("RANK") or 0)
        self._alone = int(os.environ.get("WORLD_SIZE") or 1) == 1
        self._stop: StopPoint | None = None
        self._before: dict[int, Any] = {}
        self._noticed = False
        self._steps = 0

    def __enter__(self) -> Loop:
        self.client.init_workload_monitoring()
        self._stop = StopPoint.find()
        if self._stop is None and not self._alone:
            if self._rank == 0:
                log.info(
                    "several ranks without ft_launcher: a signal ends them, and no checkpoint is saved for it"
                )
            return self
        if threading.current_thread() is threading.main_thread():  # else Python allows none
            for number in self._signals:
                self._before[number] = signal.signal(number, self._notice)
        if self._stop is not None:
            self._stop.waiting = self.client.send_heartbeat
            self._stop.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asked = self.stopped or self._noticed or (self._stop is not None and self._stop.wanted)
        if self._stop is not None:
            self._stop.end()
        if not asked:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()
        if self.client.is_initialized:
            self.client.end_all_sections()
        self.client.shutdown_workload_monitoring()

    def step(self, step: int | None = None) -> bool:
        """This rank has finished a step: a heartbeat, with the step's number if it is given.

        True: all ranks stop here; save a checkpoint and leave the loop. All ranks call it equally often. Raises
        RankMonitorClientError outside of the `with` block, or if `step` is no integer.
        """
        self.client.heartbeat(step)
        self._steps += 1
        self.stopped = self._passes()
        return self.stopped

    def section(self, name: str) -> Section:
        """`with loop.section("checkpointing"): ...`: what the rank does, with a limit of its own."""
        return self.client.section(name)

    def finished(self) -> None:
        """The training is complete: rank 0 makes the file that FAULT_TOL_FINISHED_FLAG_FILE names, if it does."""
        path = flag_path()
        if path is not None and self._rank == 0:
            create_flag(path, log)

    def _passes(self) -> bool:
        if self._stop is None:
            return self._noticed
        if self._stop.passes(position(self._steps)):
            return True
        return self._alone and self._noticed and self._stop.given_up  # nobody to agree with

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._noticed = True
        if self._stop is not None:
            self._stop.notice(number)
