"""GPU kernels timed by CUPTI: those that are launched in profiled sections, and no others.

Kernels that were launched in a section and end later still count; one during which recording was switched on again has
no reliable end (see native/core.cpp) and does not. Between sections CUPTI stays attached: attaching may take seconds.
With `max_sections` it leaves the process two sections after the last profiled one, when their kernels are done.

What always holds: no call raises, none waits for the GPU. CUPTI is not called, and the driver not initialised, before
torch has initialised CUDA: cuInit before a fork would break CUDA in the child for good. torch's profiler goes first:
while it runs, waits or warms up nothing is touched, and afterwards the callbacks are registered anew.
Does not cover: a profiler that starts in the moment in which CUPTI leaves; other tools that come and go without torch,
but for a note when they took the callbacks; programs that use CUDA without torch, unless HOLDFAST_CUPTI_LIBRARY names
the library; the cost of being attached, which only a GPU shows.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..scores import Statistic, Summary
from .cuda_events import TorchCuda
from .names import is_collective
from .source import KernelSource, KernelWindow

log = logging.getLogger("holdfast.straggler")

SECTIONS_TO_DRAIN = 2
"""Sections after the last profiled one, until its kernels have ended and CUPTI may leave."""
EMPTY_WINDOWS = 3
"""Reports in a row without a kernel, after which a log line reports it."""
UNTIMED = 0.01
"""The share of kernels without reliable times above which a note reports it: the one at a section's begin is usual."""
LEAVES_SAFELY = 23
"""CUPTI's version of CUDA 12.5. Before, it cannot leave, and being attached may slow a training by 10 to 20 %."""
OVERRIDE = "HOLDFAST_CUPTI_LIBRARY"
"""The file of libcupti to use, instead of all others."""
LIBRARY = Path(__file__).with_name("_cupti_core.so")
VERSION = 2
"""Of the functions and structures of the native core; the library has its own copy of the number."""
_WHEELS = {12: "cuda_cupti/lib", 13: "cu13/lib"}
"""Where NVIDIA's wheels have it, below the package `nvidia`."""
_REASON_BYTES = 1000
_ROW = struct.Struct("=Q6iII Q5d")
_US = 1e3  # nanoseconds
_PROFILER = "torch.profiler was active (its wait and warm-up count)"


class _Window(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("measured", ctypes.c_uint64),
        ("untimed", ctypes.c_uint64),
        ("unmeasured", ctypes.c_uint64),
        ("dropped", ctypes.c_uint64),
        ("foreign", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class CoreWindow:
    """What the core recorded since it was last asked.

    Attributes:
        kernels: summaries in microseconds, by name and by the name with the launch shape.
        measured: launches in `kernels`.
        untimed: launches without reliable times: CUPTI had no memory for them, they did not end in time, or recording
            was switched on while they ran.
        unmeasured: launches of kernels beyond the number that is distinguished.
        dropped: launches that CUPTI had no room for.
        foreign: buffers that came here and belong to another tool.
    """

    kernels: Mapping[tuple[str, str], Summary]
    measured: int = 0
    untimed: int = 0
    unmeasured: int = 0
    dropped: int = 0
    foreign: int = 0


class CuptiCore:
    """The functions of the native core. They share one recorder, because CUPTI's callbacks belong to the process.

    No call raises; each returns why it did not do what it says, one clause, empty if it did. Loading the core and
    opening CUPTI call no function of CUDA; the others call cuInit, so they are for processes that use CUDA already.
    Does not cover: threads. One at a time may call. CUPTI's own threads the core keeps apart itself.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def open(self, path: str, loaded_only: bool) -> str:
        """Open this libcupti, or take the copy of it that the process has loaded. The first one stays."""
        return self._call("open", path.encode(), ctypes.c_int(loaded_only))

    def cupti_version(self) -> int | str:
        """CUPTI's version, or why it cannot be used."""
        version = ctypes.c_uint32()
        return self._call("cupti_version", ctypes.byref(version)) or version.value

    def attach(self) -> str:
        """Register for CUPTI's buffers, whichever tool had them, and record."""
        return self._call("attach")

    def resume(self) -> str:
        """Record launches from now on."""
        return self._call("resume")

    def pause(self) -> str:
        """Record no more launches."""
        return self._call("pause")

    def flush(self, forced: bool) -> str:
        """Collect what is complete. `forced` also takes kernels that still run, which are then counted as untimed."""
        return self._call("flush", ctypes.c_int(forced))

    def detach(self) -> str:
        """CUPTI leaves the process with the end of the next CUDA call, unless another tool has subscribed to it."""
        return self._call("detach")

    def take(self) -> CoreWindow:
        """What was collected since the last call."""
        window = _Window()
        if self._call("take", ctypes.byref(window)):
            return CoreWindow({})
        counts = ("measured", "untimed", "unmeasured", "dropped", "foreign")
        return CoreWindow(dict(_kernels(window)), *(getattr(window, name) for name in counts))

    def _call(self, name: str, *arguments: object) -> str:
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        function = getattr(self._library, f"holdfast_kernels_{name}")
        done = function(*arguments, reason, ctypes.c_size_t(_REASON_BYTES))
        return "" if done else reason.value.decode(errors="replace") or "no reason given"


def _kernels(window: _Window) -> Iterator[tuple[tuple[str, str], Summary]]:
    rows = ctypes.string_at(window.rows, window.count * _ROW.size) if window.count else b""
    for row in _ROW.iter_unpack(rows):
        pointer, gx, gy, gz, bx, by, bz, shaped, _, count, least, most, median, mean, deviation = row
        name = ctypes.string_at(pointer).decode(errors="replace")
        shape = f"grid {gx},{gy},{gz} block {bx},{by},{bz}" if shaped else "other shapes"
        yield (
            (name, f"{name}<{shape}>"),
            {
                Statistic.MIN: least / _US,
                Statistic.MAX: most / _US,
                Statistic.MED: median / _US,
                Statistic.AVG: mean / _US,
                Statistic.STD: deviation / _US,
                Statistic.NUM: count,
            },
        )


@cache
def load_core() -> CuptiCore | str:
    """The core, or why there is none, one clause."""
    if not LIBRARY.exists():
        return "the kernel core was not built (no C++ compiler when holdfast was installed)"
    try:
        library = ctypes.CDLL(str(LIBRARY))
        version = library.holdfast_kernels_version()
    except (OSError, AttributeError) as error:
        return f"the kernel core cannot be loaded: {error}"
    if version != VERSION:
        return f"the kernel core is of another version ({version}, not {VERSION}): install holdfast again"
    return CuptiCore(library)


class CuptiSource(KernelSource):
    """For a process that uses CUDA."""

    name = "cupti"

    def __init__(
        self,
        core: CuptiCore,
        max_sections: int | None = None,
        usable: Callable[[], bool] | None = None,
    ) -> None:
        """`max_sections`: runs of outermost sections that are profiled in a window; None is all. `usable`: whether this
        process uses CUDA and captures no graph now; None asks torch."""
        super().__init__("")
        self._core = core
        self._most = max_sections
        self._usable = usable or TorchCuda().usable
        self._attached = False
        self._registered = False  # in this window, and by no other tool since
        self._recording = False
        self._failed = False  # until the next window
        self._began = self._profiled = self._drained = 0  # sections of this window
        self._empty = 0  # windows in a row
        self._stays_logged = False
        self._notes: dict[str, None] = {}
        core.take()  # of a source before this one

    def try_now(self) -> str:
        """Begin to record before the first section: why CUPTI does not work, one clause, is known only then."""
        if _profiler_is_active():
            return ""
        failed = self._core.attach()
        self._recording = self._registered = self._attached = not failed
        return failed

    def start(self, section: str) -> None:
        self._began += 1
        if _profiler_is_active():
            self._yield_to_profiler()
        elif self._most is not None and self._profiled >= self._most:
            self._drain()
        elif not self._recording and not self._failed and self._can_record():
            failed = self._core.resume() if self._registered else self._core.attach()
            self._note(failed)
            self._failed = bool(failed)
            self._recording = self._registered = not failed
            self._attached = self._attached or not failed

    def stop(self, late: bool = False) -> None:
        if self._may_switch():
            self._recording = False
            self._profiled += 1
            self._note(self._core.pause())

    def pause(self) -> None:
        if self._may_switch():
            self._note(self._core.pause())

    def resume(self) -> None:
        if self._may_switch():
            self._note(self._core.resume())

    def _may_switch(self) -> bool:
        """Whether a section is recorded, and torch's profiler has not come meanwhile."""
        if self._recording and _profiler_is_active():
            self._yield_to_profiler()
        return self._recording

    def take(self) -> KernelWindow:
        """Kernels that have not ended yet are in the next window."""
        if self._attached and not _profiler_is_active():
            self._note(self._core.flush(forced=False))
        taken = self._core.take()
        self._explain(taken)
        window = _as_window(taken, "; ".join(self._notes))
        self._warn(window)
        self._began = self._profiled = self._drained = 0
        self._registered = self._failed = False
        self._notes.clear()
        return window

    def close(self) -> None:
        """CUPTI leaves."""
        if self._attached and not _profiler_is_active():
            if self._recording:
                self._core.pause()
            self._let_go()
        self._recording = False

    def _can_record(self) -> bool:
        try:
            return self._usable()
        except Exception:  # torch's, about a broken CUDA: the training itself will report it
            return False

    def _yield_to_profiler(self) -> None:
        # Switching off would switch its trace off as well.
        self._note(_PROFILER)
        self._recording = self._registered = self._attached = False

    def _drain(self) -> None:
        self._drained += 1
        if self._attached and self._drained > SECTIONS_TO_DRAIN:
            self._let_go()

    def _let_go(self) -> None:
        self._attached = self._registered = False
        self._note(self._core.flush(forced=True))
        stays = self._core.detach()
        if stays and not self._stays_logged:
            self._stays_logged = True
            log.info(
                "CUPTI stays attached to this process (pid %d) between reports, which may slow it down: %s",
                os.getpid(),
                stays,
            )

    def _note(self, text: str) -> None:
        if text:
            self._notes[text] = None

    def _explain(self, taken: CoreWindow) -> None:
        if taken.foreign:
            self._note("another tool took CUPTI's callbacks; they are registered anew")
        if taken.untimed > UNTIMED * taken.measured:
            self._note(f"CUPTI had no times for {taken.untimed} kernels")
        if taken.unmeasured:
            self._note(f"{taken.unmeasured} kernels were too many different ones to tell apart")
        if self._notes or taken.measured or not self._began:
            return
        if self._registered:
            self._note(
                f"CUPTI reported no kernel in {self._profiled} sections: they launch none, or another tool took its "
                "callbacks; they are registered anew"
            )
        else:
            self._note("this process does not use CUDA")

    def _warn(self, window: KernelWindow) -> None:
        if not self._began:
            return
        self._empty = 0 if window.records else self._empty + 1
        if self._empty == EMPTY_WINDOWS:
            log.warning(
                "no GPU kernel of this process (pid %d) was timed for %d reports: %s. GPU scores of this rank are NaN "
                "until that changes",
                os.getpid(),
                self._empty,
                window.note,
            )


def open_cupti(max_sections: int | None = None, may_stay: bool = False) -> CuptiSource | str:
    """The source, or why there can be none, one clause. Only for a process in which torch has initialised CUDA.

    Args:
        max_sections: see `CuptiSource`.
        may_stay: whether a CUPTI that cannot leave the process is used as well.
    """
    tool = tool_in_the_way()
    if tool:
        return f"CUPTI is left to the profiler that started this process ({tool} is set)"
    core = load_core()
    places = candidates()
    if isinstance(core, str) or isinstance(places, str):
        return core if isinstance(core, str) else str(places)
    missing = "none was found"
    for path, loaded_only in places:
        missing = core.open(path, loaded_only)
        if not missing:
            break
    if missing:
        return f"no CUPTI library ({missing})"
    version = core.cupti_version()
    if isinstance(version, str):
        return version
    if version < LEAVES_SAFELY and not may_stay:
        return (
            f"CUPTI before CUDA 12.5 (its version is {version}) cannot leave the process, and slows the training while "
            "it stays. To time each kernel all the same, set HOLDFAST_KERNEL_SOURCE=cupti"
        )
    source = CuptiSource(core, max_sections)
    return source.try_now() or source


def candidates(environment: Mapping[str, str] = os.environ) -> list[tuple[str, bool]] | str:
    """Where this process's libcupti may be, the best first; or why there can be none, one clause.

    A place is a file or a name that the loader finds, and whether only a loaded copy counts. A copy that is loaded
    comes first, because two copies in one process disturb each other. Only copies of torch's CUDA count.
    """
    override = environment.get(OVERRIDE)
    if override:
        return [(override, False)]
    torch = sys.modules.get("torch")
    if torch is None:
        return "torch is not loaded"
    major = str(getattr(getattr(torch, "version", None), "cuda", None) or "").partition(".")[0]
    if not major.isdecimal():
        return "torch is built without CUDA"
    name = f"libcupti.so.{major}"
    files = [folder / name for folder in _folders(int(major), environment)]
    return [(name, True), *((str(file), False) for file in files if file.exists()), (name, False)]


def tool_in_the_way(environment: Mapping[str, str] = os.environ) -> str:
    """The variable by which a profiler shows that it has started this process; empty if there is none."""
    for name in environment:
        # Where Nsight Systems is installed says nothing about whether it runs.
        session = name.startswith("NSYS_") and not name.endswith(("_HOME", "_ROOT", "_DIR", "_PATH"))
        if session or name == "CUDA_INJECTION64_PATH":
            return name
    return ""


def _folders(major: int, environment: Mapping[str, str]) -> Iterator[Path]:
    if major in _WHEELS:
        spec = importlib.util.find_spec("nvidia")
        for place in (spec.submodule_search_locations if spec else None) or ():
            yield Path(place) / _WHEELS[major]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = environment.get(variable)
        if home:
            yield Path(home) / "lib64"
            yield Path(home) / "extras" / "CUPTI" / "lib64"


def _profiler_is_active() -> bool:
    """Whether torch's profiler runs, or was started and waits or warms up: CUPTI's callbacks are its own by then."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None:
        return False
    steps = getattr(getattr(profiler, "KinetoStepTracker", None), "_step_dict", ())
    return "ProfilerStep" in steps or bool(getattr(profiler, "_is_profiler_enabled", False))


def _as_window(taken: CoreWindow, note: str) -> KernelWindow:
    compute: dict[str, Summary] = {}
    collectives: dict[str, Summary] = {}
    for (name, key), summary in taken.kernels.items():
        (collectives if is_collective(name) else compute)[key] = summary
    lost = taken.dropped + taken.untimed + taken.unmeasured
    return KernelWindow(compute, collectives, taken.measured, lost, note)
