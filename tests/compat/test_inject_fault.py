"""The faults that Megatron-LM injects by name happen, after their delay, to the process that dispatched them."""

from __future__ import annotations

import importlib
import signal
import threading
from typing import Any

import pytest

from holdfast.testing import InjectedFault
from tests.compat.conftest import NAME
from tests.processes import Spawner

HAPPENS = """
import os, signal, sys, time
from nvidia_resiliency_ext.shared_utils.inject_fault import Fault, dispatch_fault_injection

fault = Fault(int(float(Fault[sys.argv[1]].value)))  # as it travels between ranks
dispatch_fault_injection(fault=fault, delay=0.05, callback=lambda: os.write(1, b"called"))
print("armed ", end="", flush=True)
try:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)
except BaseException as error:
    print(f" {type(error).__name__}")
    sys.exit(7)
"""

ENDS = {
    "ASYNC_EXC": (7, "armed called InjectedFault\n"),
    "OS_ABORT": (-signal.SIGABRT, "armed called"),
    "SEGFAULT": (-signal.SIGSEGV, "armed called"),
    "SIGINT": (7, "armed called KeyboardInterrupt\n"),
    "SIGKILL": (-signal.SIGKILL, "armed called"),
    "SIGNAL_EXC": (7, "armed called InjectedFault\n"),
    "SIGTERM": (-signal.SIGTERM, "armed called"),
}


def test_what_each_does(spawn: Spawner, python: str) -> None:
    for name, (code, said) in ENDS.items():
        run = spawn([python, "-c", HAPPENS, name])
        assert run.wait() == code, (name, run.output())
        assert run.out() == said, name
        assert "[holdfast.testing] rank 0" in run.err() and "happens now" in run.err()


def test_those_that_stay(spawn: Spawner, python: str) -> None:
    import psutil

    stopped = spawn([python, "-c", HAPPENS, "SIGSTOP"])
    stopped.wait_for(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)
    locked = spawn([python, "-c", HAPPENS, "LOCK_GIL"])
    locked.wait_for("called")
    locked.send_signal(signal.SIGINT)  # its handler is Python's, and gets no turn
    before = psutil.Process(locked.pid).cpu_times().user
    locked.wait_for(lambda: psutil.Process(locked.pid).cpu_times().user > before + 0.2)
    assert locked.returncode is None and locked.out() == "armed called"


@pytest.fixture
def faults(alias: None) -> Any:
    return importlib.import_module(f"{NAME}.shared_utils.inject_fault")


def test_the_exception_of_the_workload_waits_to_be_asked(faults: Any) -> None:
    faults.maybe_raise_workload_exception()
    for forget in (False, True):
        happened = threading.Event()
        before = set(threading.enumerate())
        faults.dispatch_fault_injection(faults.Fault.WORKLOAD_EXC, 0.0, happened.set)
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
        assert happened.is_set()
        if forget:
            faults.clear_workload_exception()
        else:
            with pytest.raises(InjectedFault, match="WORKLOAD_EXC"):
                faults.maybe_raise_workload_exception()
        faults.maybe_raise_workload_exception()


def test_one_s_own_handlers(faults: Any) -> None:
    seen: list[tuple[float, Any]] = []
    fault = faults.register_fault("SIGKILL", lambda delay, callback: seen.append((delay, callback)))
    assert fault is faults.Fault.SIGKILL
    mine = faults.register_fault("FIRE", lambda delay, callback: seen.append((delay, callback)))
    faults.dispatch_fault_injection(fault, 1.0)
    faults.dispatch_fault_injection(mine, 2.0, print)
    faults.dispatch_fault_injection("SIGKILL", 3.0)
    assert seen == [(1.0, None), (2.0, print), (3.0, None)]
    with pytest.raises(RuntimeError, match="unknown fault 'WATER'; known: GPU_ERROR, "):
        faults.dispatch_fault_injection("WATER", 0.0)


def test_a_fault_of_the_gpu_needs_one(faults: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU, and this process needs it")
    with pytest.raises(RuntimeError, match="GPU_SLEEP needs a GPU, and there is none"):
        faults.dispatch_fault_injection(faults.Fault.GPU_SLEEP, 0.0)


def test_the_names_of_the_original(faults: Any) -> None:
    names = "GPU_ERROR GPU_SLEEP WORKLOAD_EXC ASYNC_EXC SIGNAL_EXC OS_ABORT LOCK_GIL SEGFAULT SIGINT SIGKILL SIGTERM"
    assert [fault.name for fault in faults.Fault] == [*names.split(), "SIGSTOP"]
    assert set(faults.__all__) <= set(dir(faults))
