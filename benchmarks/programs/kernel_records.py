"""A million kernel records through a fake libcupti, several times: nanoseconds for each, printed as JSON.

`kernel_records.py holdfast|nvrx`, with the folder of the fake libraries in LD_LIBRARY_PATH. `client` is everything
until the records are counted; `alone` is the fake with a client that throws its buffers away. Both in time of the
processor, so that other programs on the machine matter less.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from time import process_time

RECORDS = 1_000_000
KERNELS = 500
ROUNDS = 5
BUFFERS = (1_000_000, 8, 8192)  # what NVRx's detector asks for: bytes, buffers, times kept of each kernel

names = [ctypes.create_string_buffer((f"kernel_{i}_" + "x" * 200)[:200].encode()) for i in range(KERNELS)]
pointers = (ctypes.c_void_p * KERNELS)(*(ctypes.addressof(name) for name in names))
launches = (pointers, KERNELS, ctypes.c_long(RECORDS), ctypes.c_uint64(5000))


def holdfast(gpu: ctypes.CDLL) -> Callable[[], None]:
    """Ours, measuring. Gives what collects the last records."""
    from holdfast.straggler.kernels.cupti import CuptiCore, load_core

    core = load_core()
    assert isinstance(core, CuptiCore), core
    reason = core.open("libcupti.so.12", True) or core.attach()
    assert not reason, reason

    def collect() -> None:
        assert core.flush(forced=False) == ""
        measured = core.take().measured
        assert measured == RECORDS, measured

    return collect


def nvrx(gpu: ctypes.CDLL) -> Callable[[], None]:
    """The peer's binary, measuring."""
    from nvrx_cupti_module import CuptiProfiler

    profiler = CuptiProfiler(*BUFFERS)
    profiler.initialize()
    profiler.start()

    def collect() -> None:
        gpu.cuptiActivityFlushAll(0)
        measured = sum(stats.num_calls for stats in profiler.get_stats().values())
        assert measured == RECORDS, measured  # 2,000 of each kernel: none was forgotten
        profiler.reset()

    return collect


def main() -> None:
    """Measure one of them."""
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0
    gpu = ctypes.CDLL("libcupti.so.12")
    gpu.fake_launch_many.restype = ctypes.c_long
    gpu.fake_seconds_alone.restype = ctypes.c_double
    collect = {"holdfast": holdfast, "nvrx": nvrx}[sys.argv[1]](gpu)
    client = []
    for _ in range(ROUNDS):
        started = process_time()
        assert gpu.fake_launch_many(*launches) == RECORDS
        gpu.cuptiActivityFlushAll(0)
        client.append((process_time() - started) / RECORDS * 1e9)
        collect()
    alone = [gpu.fake_seconds_alone(*launches) / RECORDS * 1e9 for _ in range(ROUNDS)]
    print(json.dumps({"client": client, "alone": alone}))


if __name__ == "__main__":
    main()
