"""GPU kernels timed by CUPTI, in a window of sections for each report, and CUPTI gone in between.

CUPTI costs a training that it is merely attached to 10 to 20 %. So the first sections after a report are measured, then
it is switched off, and two sections later, when their kernels are done, it leaves the process. It stays on from the
first section of the window to the last: switched off and on around each one it loses records, unless each time waits
for the GPU. Kernels launched between the sections of a window are therefore measured as well.

What always holds: no call raises, none waits for the GPU; a forked child does nothing. CUPTI is not called, and the
driver not initialised, before torch has initialised CUDA: a script may set its device or fork loaders first, and cuInit
before a fork would break CUDA in the child for good. torch's profiler goes first: while it runs nothing is touched, and
afterwards the callbacks are registered anew.
Does not cover: a profiler that starts in the moment in which CUPTI leaves; other tools that come and go without torch,
but for a note when they took the callbacks.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from enum import Enum, auto
from functools import lru_cache

from ..statistic import Summary
from .cupti_core import CoreWindow, CuptiCore, load_core
from .cupti_library import candidates, tool_in_the_way
from .names import is_collective
from .source import KernelWindow
from .torch_cuda import TorchCuda

log = logging.getLogger("holdfast.straggler")

SECTIONS_PER_WINDOW = 20
"""Outermost sections that are measured for each report."""
SECTIONS_TO_DRAIN = 2
"""Sections after those, until their kernels have ended and CUPTI may leave."""
EMPTY_WINDOWS = 3
"""Reports in a row without a kernel, after which the log says so."""
_PROFILER = "torch.profiler was running"

_collective = lru_cache(maxsize=8192)(is_collective)


class _Stage(Enum):
    WAITING = auto()  # for the first section of the window
    MEASURING = auto()
    DRAINING = auto()  # switched off; its last kernels may still run
    DONE = auto()  # until the next report


_MEASURING, _DONE = _Stage.MEASURING, _Stage.DONE  # for the hot path


class CuptiSource:
    """The source named `cupti`. `usable` tells whether this process uses CUDA already, and captures no graph now; with
    `leave=False` CUPTI stays attached between windows."""

    name = "cupti"
    reason = ""

    def __init__(self, core: CuptiCore, usable: Callable[[], bool] | None = None, leave: bool = True) -> None:
        self._core = core
        self._usable = usable or TorchCuda().usable
        self._leave = leave
        self._process = os.getpid()
        self._stage = _Stage.WAITING
        self._sections = 0  # of this window that began
        self._measured = 0  # of this window that were measured to their end
        self._drained = 0
        self._empty = 0  # windows in a row
        self._stays = False  # it was said that CUPTI does not leave
        self._notes: dict[str, None] = {}
        core.take()  # of a source before this one

    def try_now(self) -> str:
        """Begin the first window before its first section, if CUDA is in use: why CUPTI does not work, one clause, is
        known only then. Empty if it does, or if that cannot be known yet."""
        if not _profiler_runs():
            self._begin()
        return "; ".join(self._notes)

    def start(self, section: str) -> None:
        """Begin the window with its first section, and end it some sections after its last."""
        if self._stage is _DONE:  # most sections: they pay for nothing but this line
            return
        if os.getpid() == self._process:
            self._sections += 1
            self._on_start()

    def stop(self) -> None:
        """Count the section; after the last of the window, switch off."""
        if self._stage is _MEASURING and os.getpid() == self._process:
            self._on_stop()

    def take(self) -> KernelWindow:
        """What the window measured, and begin the next with the next section."""
        if os.getpid() != self._process:
            return KernelWindow(note="a forked process has no kernel times")
        return self._take()

    def close(self) -> None:
        """Switch off, and let CUPTI leave."""
        if os.getpid() == self._process:
            if self._stage is _Stage.MEASURING and not _profiler_runs():
                self._core.pause()
                self._stage = _Stage.DRAINING
            if self._stage is _Stage.DRAINING and not _profiler_runs():
                self._let_go()
            self._stage = _Stage.DONE

    def _on_start(self) -> None:
        if _profiler_runs():
            self._yield_to_profiler()
        elif self._stage is _Stage.WAITING:
            self._begin()
        elif self._stage is _Stage.DRAINING:
            self._drained += 1
            if self._drained > SECTIONS_TO_DRAIN:
                self._let_go()

    def _on_stop(self) -> None:
        if self._stage is not _Stage.MEASURING:
            return
        if _profiler_runs():
            self._yield_to_profiler()
            return
        self._measured += 1
        if self._measured >= SECTIONS_PER_WINDOW:
            self._stage, self._drained = _Stage.DRAINING, 0
            self._note(self._core.pause())

    def _begin(self) -> None:
        if not self._can_begin():
            return
        failed = self._core.attach()
        self._note(failed)
        self._stage = _Stage.DONE if failed else _Stage.MEASURING

    def _can_begin(self) -> bool:
        try:
            return self._usable()
        except Exception:  # torch's, about a CUDA that is broken: the training will say so itself
            return False

    def _yield_to_profiler(self) -> None:
        # Switching off would switch its trace off as well.
        self._note(_PROFILER)
        self._stage = _Stage.WAITING

    def _let_go(self) -> None:
        self._stage = _Stage.DONE
        if not self._leave:
            self._note(self._core.flush(forced=False))
            return
        self._note(self._core.flush(forced=True))
        stays = self._core.detach()
        if stays and not self._stays:
            log.info(
                "CUPTI stays attached to this process (pid %d) between reports, which may slow it down: %s",
                self._process,
                stays,
            )
        self._stays = self._stays or bool(stays)

    def _take(self) -> KernelWindow:
        attached = self._stage in (_Stage.MEASURING, _Stage.DRAINING)
        if attached and not _profiler_runs():
            self._note(self._core.flush(forced=False))
        taken = self._core.take()
        self._explain(taken)
        if self._stage is not _Stage.MEASURING or not taken.measured:
            self._stage = _Stage.WAITING  # also when nothing came: the callbacks are registered anew
        window = _as_window(taken, "; ".join(self._notes))
        self._warn(window)
        self._sections = self._measured = 0
        self._notes.clear()
        return window

    def _note(self, text: str) -> None:
        if text:
            self._notes[text] = None

    def _explain(self, taken: CoreWindow) -> None:
        if taken.foreign:
            self._note("another tool took CUPTI's callbacks; they are registered anew")
        if taken.untimed:
            self._note(f"CUPTI had no times for {taken.untimed} kernels")
        if taken.unmeasured:
            self._note(f"{taken.unmeasured} kernels were too many different ones to tell apart")
        if self._notes or taken.measured or not self._sections:
            return
        if self._stage is _Stage.WAITING:
            self._note("this process does not use CUDA")
        else:
            self._note(
                f"CUPTI reported no kernel in {self._measured} sections: they launch none, or another tool took its "
                "callbacks; they are registered anew"
            )

    def _warn(self, window: KernelWindow) -> None:
        if not self._sections:
            return
        self._empty = 0 if window.records else self._empty + 1
        if self._empty == EMPTY_WINDOWS:
            log.warning(
                "no GPU kernel of this process (pid %d) was timed for %d reports: %s. GPU scores of this rank are NaN "
                "until that changes",
                self._process,
                self._empty,
                window.note,
            )


def open_cupti() -> CuptiSource | str:
    """The source, or why there can be none, one clause. Calls functions of CUDA only where torch has before."""
    tool = tool_in_the_way()
    if tool:
        return f"CUPTI is left to the profiler that started this process ({tool} is set)"
    core = load_core()
    places = candidates()
    if isinstance(core, str) or isinstance(places, str):
        return core if isinstance(core, str) else str(places)
    missing = core.driver_is_there()
    if missing:
        return f"no CUDA driver ({missing})"
    for place in places:
        missing = core.open(place.path, place.loaded_only)
        if not missing:
            source = CuptiSource(core)
            return source.try_now() or source
    return f"no CUPTI library ({missing})"


def _profiler_runs() -> bool:
    profiler = sys.modules.get("torch.autograd.profiler")
    return bool(getattr(profiler, "_is_profiler_enabled", False))


def _as_window(taken: CoreWindow, note: str) -> KernelWindow:
    compute: dict[str, Summary] = {}
    collectives: dict[str, Summary] = {}
    for kernel in taken.kernels:
        (collectives if _collective(kernel.name) else compute)[kernel.key] = kernel.summary
    lost = taken.dropped + taken.untimed + taken.unmeasured
    return KernelWindow(compute, collectives, taken.measured, lost, note)
