"""The wrapper of a strategy's `training_step`: what is done around each call, and nothing that may be done rarely.

What always holds: a call that raises closes its section and is measured; a call within a call
passes; what is due is only noted here (`arm`), and done after the batch.

Does not cover: who sets the attributes, see :mod:`.each_step`; calls from several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.fault_tolerance.stop.rules import VALIDATION_BITS

if TYPE_CHECKING:
    from holdfast.fault_tolerance.board import BoardWriter
    from holdfast.straggler.sections import Section

NEVER = 1 << 62
LONG_STEP_NS = 50_000_000
"""After a step as long as this a rank says only after the batch that it has passed it, so that all can stop there, and
not a batch later. The hook after the batch, which that takes, costs nothing beside such a step."""


class Point(Protocol):
    """Where a rank may be asked to stop: a `StopPoint`."""

    def passes_early(self, position: int) -> bool: ...


def _nothing(*_: Any) -> None:
    """Nobody is interested."""


class StepCall:
    """One wrapper. It only passes calls on until its attributes are set.

    counter: its `ready` counts the training batches of the trainer, with the one that runs.
    ready, base: the last count, and the one before this fit's first batch.
    due: the count from which on `arm` is called.
    writer, steps: where heartbeats go, with `steps.completed`; None: no heartbeats, or no supervision.
    section: the section around each call; `told` is called, with whether it was to be closed, if that is impossible.
    lost: called when supervision has ended, in which case `writer` is to be taken away.
    detector: its `_session` is asked for in each call, and `remeasure` called when it is not `session`.
    measured: the section of the straggler detector that gets the time of each call.
    inner: called in the place of the original, with it and the arguments, if it is not None.
    """

    def __init__(self) -> None:
        self.original: Callable[..., Any] = _nothing
        self.active = True
        self.within = False
        self.counter: Any = None
        self.ready = self.base = self.began = 0
        self.due = NEVER
        self.arm: Callable[[], None] = _nothing
        self.lost: Callable[[], None] = _nothing
        self.writer: BoardWriter | None = None
        self.steps: Any = None
        self.section: str | None = None
        self.told: Callable[[bool], object] = _nothing
        self.detector: Any = None
        self.session: Any = None
        self.remeasure: Callable[[], None] = _nothing
        self.measured: Section | None = None
        self.inner: Callable[..., Any] | None = None
        self._passes_early: Callable[[int], bool] | None = None

    def look(self, point: Point | None) -> None:
        """Say at this point where the rank is; None: nowhere."""
        self._passes_early = None if point is None else point.passes_early

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.within or not self.active:
            return self.original(*args, **kwargs)
        began = monotonic_ns()
        ready = self.counter.ready
        if ready != self.ready:
            self._batch(ready, began)
        if self.detector is not None and self.detector._session is not self.session:
            self.remeasure()
        writer, section = self.writer, self.section
        if writer is None or section is None:
            opened = False
        elif not (opened := writer.start_section(section)):
            self.told(False)
        self.within = True
        try:
            if self.inner is None:
                return self.original(*args, **kwargs)
            return self.inner(self.original, args, kwargs)
        finally:
            self.within = False
            if opened and writer is not None and section is not None and not writer.end_section(section):
                self.told(True)
            measured = self.measured
            if measured is not None:
                measured.kept.append(monotonic_ns() - began)
                measured.count += 1

    def _batch(self, ready: int, now: int) -> None:
        """A batch begins."""
        before, self.ready = self.ready, ready
        last, self.began = self.began, now
        writer = self.writer
        if writer is not None:
            if writer._over:
                self.lost()
            elif self.steps is not None:
                writer.heartbeat(self.steps.completed)
        due = ready >= self.due or ready != before + 1
        passes = self._passes_early
        if passes is not None and not due:
            due = now - last > LONG_STEP_NS or not passes(ready - self.base << VALIDATION_BITS)
        if due:
            self.arm()

    def __copy__(self) -> StepCall:
        return self

    def __deepcopy__(self, memo: Any) -> StepCall:
        """As functions are copied: not at all."""
        return self
