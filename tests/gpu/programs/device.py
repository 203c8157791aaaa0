"""The GPU for the programs of the checks; in a dry run the CPU, with stand-ins for what only a GPU can do."""

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
_busy = False  # dry: whether a kernel that never ends was launched

STORE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry store() {
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 16;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\0"""
"""A kernel that writes where nothing is mapped. The driver compiles it for whatever GPU there is."""


def mark(what: str, **values: object) -> None:
    """Tell the check; see `tests.gpu.job`."""
    told = {
        "what": what,
        "cycle": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "rank": int(os.environ["RANK"]),
        "pid": os.getpid(),
        "time": time.time(),
        **values,
    }
    sys.stdout.write(f"mark {json.dumps(told)}\n")
    sys.stdout.flush()


def free_memory() -> int:
    """Bytes of GPU memory that nobody has."""
    return 1 << 33 if DRY else int(torch.cuda.mem_get_info()[0])


def launch_endless_kernel() -> None:
    """A kernel that never ends, on the current stream."""
    global _busy
    if DRY:
        _busy = True
    else:
        torch.cuda._sleep(FOREVER)


def synchronize() -> None:
    """Wait for the GPU."""
    if not DRY:
        torch.cuda.synchronize()
    elif _busy:
        time.sleep(1e6)


# What a rank does instead of a step. Their names are in the verdicts that are expected.


def hang_in_synchronize() -> None:
    launch_endless_kernel()
    synchronize()


def hang_in_item() -> None:
    number = torch.ones(1, device=NAME)
    launch_endless_kernel()
    synchronize() if DRY else number.item()


def hang_in_copy() -> None:
    numbers = torch.ones(1 << 20, device=NAME)
    launch_endless_kernel()
    synchronize() if DRY else numbers.cpu()


def wait_on_the_host() -> None:
    threading.Event().wait()


def never_join_the_collective() -> None:
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
    assert driver.cuModuleLoadData(ctypes.byref(module), STORE) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"store") == 0
    assert driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    synchronize()


def allocate_too_much() -> None:
    if DRY:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1048576.00 GiB.")
    torch.empty(1 << 50, dtype=torch.uint8, device=NAME)
