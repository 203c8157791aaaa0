"""For processes of tests: the fake libcupti by ctypes, and a core and a source that use it.

The fake stands for the GPU, the driver and other tools; see native/fake_cupti.h.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import types
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from holdfast.straggler.kernels.cupti import CoreWindow, CuptiCore, CuptiSource, load_core

Call = IntEnum(
    "Call",
    "REGISTER ENABLE DISABLE FLUSH NEXT DROPPED FINALIZE SUBSCRIBE UNSUBSCRIBE DOMAIN CLOCK",
    start=0,
)

gpu = ctypes.CDLL(os.environ["FAKE_CUPTI"]) if "FAKE_CUPTI" in os.environ else None
if gpu is not None:
    gpu.fake_calls.restype = gpu.fake_other_tool_records.restype = ctypes.c_uint64
    gpu.fake_launch_many.restype = ctypes.c_long
    gpu.fake_seconds_alone.restype = ctypes.c_double


def calls_made() -> list[int]:
    """How often each function of CUPTI was called."""
    return [gpu.fake_calls(call) for call in Call]


class Kernel(ctypes.Structure):
    """struct fake_kernel."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("grid", ctypes.c_int32 * 3),
        ("block", ctypes.c_int32 * 3),
    )


_names: dict[bytes, ctypes.Array[ctypes.c_char]] = {}


def named(name: str) -> ctypes.Array[ctypes.c_char]:
    """A name that stays where it is, as CUPTI's do."""
    return _names.setdefault(name.encode(), ctypes.create_string_buffer(name.encode()))


def launch(
    name: object = "gemm",
    duration: int = 1000,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (64, 1, 1),
    start: int = 1000,
    end: int | None = None,
) -> int:
    """A kernel runs for `duration` ns."""
    memory = named(name) if isinstance(name, str) else name
    where = ctypes.addressof(memory) if memory is not None else None
    kernel = Kernel(where, start, start + duration if end is None else end, grid, block)
    return gpu.fake_launch(ctypes.byref(kernel))


def launch_many(names: Sequence[str], count: int, duration: int) -> int:
    """`count` kernels in one call, of `duration` + 0 to 96 ns."""
    array = (ctypes.c_void_p * len(names))(*(ctypes.addressof(named(name)) for name in names))
    return gpu.fake_launch_many(array, len(names), ctypes.c_long(count), ctypes.c_uint64(duration))


class CountedCore(CuptiCore):
    """With what the core counts for tests."""

    @property
    def times_left(self) -> int:
        """How often CUPTI left the process."""
        return self._count("times_left")

    @property
    def buffers_out(self) -> int:
        """Buffers that CUPTI has."""
        return self._count("buffers_out")

    def _count(self, name: str) -> int:
        function = getattr(self._library, f"holdfast_kernels_{name}")
        function.restype = ctypes.c_uint64
        return int(function())


def counted(core: CuptiCore | str) -> CountedCore:
    """The same core."""
    assert not isinstance(core, str), core
    return CountedCore(core._library)


def attached() -> CountedCore:
    """The core, measuring."""
    core = counted(load_core())
    assert core.open(os.environ["FAKE_CUPTI"], False) == ""
    assert core.attach() == ""
    return core


def kernels(taken: CoreWindow) -> list[types.SimpleNamespace]:
    """The kernels of a window, by attributes."""
    return [
        types.SimpleNamespace(name=name, key=key, summary=summary)
        for (name, key), summary in taken.kernels.items()
    ]


def source(max_sections: int | None = None) -> CuptiSource:
    """A source in a process that uses CUDA."""
    core = load_core()
    assert not isinstance(core, str), core
    assert core.open(os.environ["FAKE_CUPTI"], False) == ""
    return CuptiSource(core, max_sections, usable=lambda: True)


def stand_in_torch(cuda: str | None = "13.0", in_use: bool = True) -> types.ModuleType:
    """What the source asks of torch, of a build for this CUDA."""
    torch = types.ModuleType("torch")
    torch.version = types.SimpleNamespace(cuda=cuda)  # type: ignore[attr-defined]
    torch.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        is_initialized=lambda: in_use, is_current_stream_capturing=lambda: False
    )
    sys.modules["torch"] = torch
    profiler = types.ModuleType("torch.autograd.profiler")
    profiler._is_profiler_enabled = False  # type: ignore[attr-defined]
    sys.modules["torch.autograd.profiler"] = profiler
    return torch


def make_torch_use_cuda() -> None:
    """For a process with the real torch: it answers as if it had initialised CUDA."""
    import torch

    torch.cuda.is_initialized = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: False


logged: list[str] = []
"""Level and text of each line of the log, in a check."""


class _Logged(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logged.append(f"{record.levelname} {record.getMessage()}")


def run_checks(program: Mapping[str, Any]) -> None:
    """Run each function `check_*`, in a process of its own, and print as JSON how each ended.

    They are forked from this one before it opens the core, so nothing is imported again. What a check writes goes to a
    file of its name in the folder that is the argument.
    """
    logging.basicConfig(level=logging.INFO, handlers=[_Logged()])
    statuses = {}
    for name, check in program.items():
        if not name.startswith("check_"):
            continue
        with (Path(sys.argv[1]) / name).open("w") as output:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                check()
                sys.exit()
        statuses[name] = os.waitpid(child, 0)[1]
    print(json.dumps(statuses))
