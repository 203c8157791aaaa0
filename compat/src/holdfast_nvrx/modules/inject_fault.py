"""The faults that Megatron-LM and others inject into a rank by name, done by `holdfast.testing` where that has them.

What always holds: `dispatch_fault_injection` returns at once; after the delay one line on stderr says what happens
now, then the callback is called, then it happens. Importing this loads no torch.
Does not cover: choosing ranks; what `inprocess` adds; what a registered handler does. A kind that the original does
not have either is `register_fault`'s: an enumeration cannot grow.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from holdfast import testing

__all__ = [
    "Fault",
    "clear_workload_exception",
    "dispatch_fault_injection",
    "maybe_raise_workload_exception",
    "register_fault",
]

Callback = Callable[[], None]
Handler = Callable[[float, Callback | None], object]


class Fault(Enum):
    """Kinds of faults. Megatron-LM sends the values between ranks."""

    GPU_ERROR = auto()
    GPU_SLEEP = auto()
    WORKLOAD_EXC = auto()
    ASYNC_EXC = auto()
    SIGNAL_EXC = auto()
    OS_ABORT = auto()
    LOCK_GIL = auto()
    SEGFAULT = auto()
    SIGINT = auto()
    SIGKILL = auto()
    SIGTERM = auto()
    SIGSTOP = auto()


_OF_THE_TEST_KIT: dict[Fault | str, str] = {
    Fault.LOCK_GIL: "gil",
    Fault.SEGFAULT: "segv",
    Fault.SIGKILL: "kill",
    Fault.SIGNAL_EXC: "exception",  # raised by a signal handler, in the main thread
    Fault.SIGSTOP: "stop",
}
_registered: dict[Fault | str, Handler] = {}
_workload_exception = threading.Event()


def register_fault(fault_name_or_enum: Fault | str, handler: Handler) -> Fault | str:
    """From now on `handler(delay, callback)` is what `dispatch_fault_injection` does for this fault.

    A name that `Fault` has stands for its member. Returns what to give to `dispatch_fault_injection`.
    """
    fault = _member(fault_name_or_enum)
    _registered[fault] = handler
    return fault


def dispatch_fault_injection(fault: Fault | str, delay: float, callback: Callback | None = None) -> None:
    """Let the fault happen in this process in `delay` seconds.

    fault: a name that `Fault` has stands for its member here too.
    callback: called just before, in a thread of its own. Call this in the main thread for SIGNAL_EXC, and in the one
    that is to be hit for ASYNC_EXC. Raises RuntimeError for a fault that is not known or needs a GPU that is not there.
    """
    fault = _member(fault)
    if fault in _registered:
        _registered[fault](delay, callback)
    elif fault in _OF_THE_TEST_KIT:
        kind = _OF_THE_TEST_KIT[fault]
        testing.Faults(
            [testing.Fault(kind, after=delay, rank="all", cycle="each")],
            announce=None if callback is None else lambda _: callback(),
        )
    elif isinstance(fault, Fault):
        _start(fault, delay, callback, _deed(fault))
    else:
        raise RuntimeError(f"unknown fault {fault!r}; known: {', '.join(Fault.__members__)}")


def maybe_raise_workload_exception() -> None:
    """Raises InjectedFault once after a WORKLOAD_EXC. For the training loop: a flag is all that is looked at."""
    if _workload_exception.is_set():
        _workload_exception.clear()
        raise testing.InjectedFault(
            "injected by nvidia_resiliency_ext.shared_utils.inject_fault: WORKLOAD_EXC"
        )


def clear_workload_exception() -> None:
    """Forget a WORKLOAD_EXC that has not been raised."""
    _workload_exception.clear()


def _member(fault: Fault | str) -> Fault | str:
    return Fault.__members__.get(fault, fault) if isinstance(fault, str) else fault


def _start(fault: Fault, delay: float, callback: Callback | None, deed: Callable[[], object]) -> None:
    def happen() -> None:
        os.write(
            2, f"[holdfast.testing] rank {os.environ.get('RANK', '0')}: {fault.name} happens now\n".encode()
        )
        if callback is not None:
            callback()
        deed()

    timer = threading.Timer(delay, happen)
    timer.daemon = True
    timer.start()


def _deed(fault: Fault) -> Callable[[], object]:
    """What happens, with everything found out that must be asked in the calling thread."""
    if fault is Fault.WORKLOAD_EXC:
        return _workload_exception.set
    if fault is Fault.ASYNC_EXC:
        return partial(_raise_in, threading.get_ident())
    if fault is Fault.OS_ABORT:
        return os.abort
    if fault in (Fault.GPU_ERROR, Fault.GPU_SLEEP):
        return partial(_on_gpu, fault, _current_gpu(fault))
    return partial(os.kill, os.getpid(), signal.Signals[fault.name])


def _raise_in(thread: int) -> None:
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    set_exception(ctypes.c_ulong(thread), ctypes.py_object(testing.InjectedFault))


def _current_gpu(fault: Fault) -> int:
    # Each thread has a current device of its own, so a new thread would take the first one.
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"fault {fault.name} needs a GPU, and there is none")
    return torch.cuda.current_device()


def _on_gpu(fault: Fault, device: int) -> None:
    import torch

    with torch.cuda.device(device):
        if fault is Fault.GPU_SLEEP:
            torch.cuda._sleep(1 << 62)  # type: ignore[no-untyped-call]  # cycles: forever
        else:
            outside = torch.tensor([1 << 20], device="cuda")
            torch.zeros(1, device="cuda").index_select(0, outside)  # a device-side assertion
            torch.cuda.synchronize()
