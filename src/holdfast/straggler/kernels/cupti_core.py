"""The kernel core as Python sees it: one library in C++ for each process, built from `native/`, called with ctypes.

What always holds: no call raises; each returns why it did not do what it says, one clause, empty if it did. Loading
the core and opening CUPTI call no function of CUDA.
Does not cover: threads. One at a time may call, as `cupti` sees to; CUPTI's own threads the core keeps apart itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..statistic import Statistic

LIBRARY = Path(__file__).with_name("_cupti_core.so")
VERSION = 1
"""Of the functions and structures below; the library has its own copy of the number."""
_REASON_BYTES = 1000
_ROW = struct.Struct("=Q6iII Q5d")
_US = 1e3  # nanoseconds


class _Window(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("measured", ctypes.c_uint64),
        ("untimed", ctypes.c_uint64),
        ("unmeasured", ctypes.c_uint64),
        ("dropped", ctypes.c_uint64),
        ("foreign", ctypes.c_uint64),
        ("delivered", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class MeasuredKernel:
    """One kernel of a window: `summary` is in microseconds; `key` is the name with the launch shape."""

    name: str
    key: str
    summary: dict[Statistic, float]


@dataclass(frozen=True)
class CoreWindow:
    """What the core measured since it was last asked."""

    kernels: tuple[MeasuredKernel, ...] = ()
    measured: int = 0
    """Launches in `kernels`."""
    untimed: int = 0
    """Launches for which CUPTI had no times: it had no memory for them, or they did not end in time."""
    unmeasured: int = 0
    """Launches of kernels beyond the number that is told apart."""
    dropped: int = 0
    """Launches that CUPTI had no room for."""
    foreign: int = 0
    """Buffers that came here and belong to another tool."""


class CuptiCore:
    """The functions of the library. They share one recorder, because CUPTI's callbacks belong to the process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ("times_left", "buffers_out"):
            getattr(library, f"holdfast_kernels_{name}").restype = ctypes.c_uint64

    def open(self, path: str, loaded_only: bool) -> str:
        """Open this libcupti, or take the copy of it that the process has loaded. The first one stays."""
        return self._call("open", path.encode(), ctypes.c_int(loaded_only))

    def driver_is_there(self) -> str:
        """Whether the library of the CUDA driver can be loaded. It is not called."""
        return self._call("driver_is_there")

    def attach(self) -> str:
        """Register for CUPTI's buffers, whoever had them, and measure. The first time this calls cuInit: only for
        processes that use CUDA already. A process must not fork and use CUDA in the child after that."""
        return self._call("attach")

    def pause(self) -> str:
        """Collect what is complete, and measure no more."""
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
            return CoreWindow()
        return CoreWindow(
            tuple(_kernels(window)),
            window.measured,
            window.untimed,
            window.unmeasured,
            window.dropped,
            window.foreign,
        )

    @property
    def times_left(self) -> int:
        """How often CUPTI left the process."""
        return int(self._library.holdfast_kernels_times_left())

    @property
    def buffers_out(self) -> int:
        """Buffers that CUPTI has."""
        return int(self._library.holdfast_kernels_buffers_out())

    def _call(self, name: str, *arguments: object) -> str:
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        function = getattr(self._library, f"holdfast_kernels_{name}")
        done = function(*arguments, reason, ctypes.c_size_t(_REASON_BYTES))
        return "" if done else reason.value.decode(errors="replace") or "no reason given"


def _kernels(window: _Window) -> Iterator[MeasuredKernel]:
    if not window.count:
        return
    rows = ctypes.string_at(window.rows, window.count * _ROW.size)
    for row in _ROW.iter_unpack(rows):
        pointer, gx, gy, gz, bx, by, bz, shaped, _, count, least, most, median, mean, deviation = row
        name = ctypes.string_at(pointer).decode(errors="replace")
        shape = f"grid {gx},{gy},{gz} block {bx},{by},{bz}" if shaped else "other shapes"
        summary = {
            Statistic.MIN: least / _US,
            Statistic.MAX: most / _US,
            Statistic.MED: median / _US,
            Statistic.AVG: mean / _US,
            Statistic.STD: deviation / _US,
            Statistic.NUM: count,
        }
        yield MeasuredKernel(name, f"{name}<{shape}>", summary)


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
