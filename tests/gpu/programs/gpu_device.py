"""The GPU for the programs of the checks. In a dry run: the CPU, with stand-ins for what only a GPU can do."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time

import torch

DRY = os.environ.get("GPU_CHECK_DEVICE") == "cpu"
NAME = "cpu" if DRY else "cuda"
COLLECTIVES = "gloo" if DRY else "nccl"
FOREVER = 1 << 62  # cycles: more than a century
_is_busy = False  # dry run: whether an endless kernel was launched

STORE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry store()
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, 16;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
\0"""
"""PTX of a kernel that writes to an address that is not mapped; the driver compiles it for the GPU that is there."""


def mark(kind: str, **values: object) -> None:
    """Report to the check; see `tests.gpu.gpu_job`."""
    identity = {"cycle": int(os.environ["TORCHELASTIC_RESTART_COUNT"]), "rank": int(os.environ["RANK"])}
    report = {"kind": kind, **identity, "pid": os.getpid(), "time": time.time(), **values}
    sys.stdout.write(f"mark {json.dumps(report)}\n")
    sys.stdout.flush()


def free_memory() -> int:
    """Free bytes of GPU memory."""
    return 1 << 33 if DRY else int(torch.cuda.mem_get_info()[0])


def synchronize() -> None:
    if not DRY:
        torch.cuda.synchronize()
    elif _is_busy:
        time.sleep(1e6)


def _launch_endless_kernel() -> None:
    global _is_busy
    _is_busy = True
    if not DRY:
        torch.cuda._sleep(FOREVER)


# What the last rank does instead of a step. Verdicts must contain the names of the innermost functions here.


def hang_in_synchronize() -> None:
    _launch_endless_kernel()
    synchronize()


def hang_in_item() -> None:
    number = torch.ones(1, device=NAME)
    _launch_endless_kernel()
    wait_for_item(number)


def wait_for_item(number: torch.Tensor) -> None:
    if DRY:
        time.sleep(1e6)
    number.item()


def hang_in_copy() -> None:
    numbers = torch.ones(1 << 20, device=NAME)
    _launch_endless_kernel()
    wait_for_copy(numbers)


def wait_for_copy(numbers: torch.Tensor) -> None:
    if DRY:
        time.sleep(1e6)
    numbers.cpu()


def wait_on_the_host() -> None:
    threading.Event().wait()


def skip_the_collective() -> None:
    time.sleep(1e6)


def fail_an_assertion() -> None:
    if DRY:
        raise RuntimeError("CUDA error: device-side assert triggered")
    table = torch.zeros(4, device=NAME)
    table[torch.tensor([9], device=NAME)]
    synchronize()


def access_illegally() -> None:
    if DRY:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    synchronize()  # so that there is a context
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), STORE))
    _check(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"store"))
    one, none = ctypes.c_uint(1), ctypes.c_uint(0)
    _check(driver.cuLaunchKernel(kernel, one, one, one, one, one, one, none, None, None, None))
    synchronize()


def _check(code: int) -> None:
    if code:
        raise AssertionError(f"the check itself failed: CUDA driver error {code}")


def allocate_too_much() -> None:
    if DRY:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1048576.00 GiB.")
    torch.empty(1 << 50, dtype=torch.uint8, device=NAME)
