"""The source named cupti: whose kernels it reports, when CUPTI is attached and gone, to which tools it yields.

Each function `check_*` is a test, in a process of its own: see `run_checks`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.straggler import Detector, Report
from holdfast.straggler.kernels import cupti
from holdfast.straggler.kernels.choose import choose
from holdfast.straggler.kernels.cupti import OVERRIDE, CuptiSource, load_core, open_cupti
from holdfast.straggler.kernels.source import KernelSource
from holdfast.straggler.scores import Statistic
from tests.straggler.kernels.fake import (
    Call,
    calls_made,
    gpu,
    launch,
    logged,
    run_checks,
    source,
    stand_in_torch,
)


def section(one: KernelSource, *kernels: str) -> None:
    one.start("fwd")
    for kernel in kernels:
        launch(kernel)
    one.stop()


def step(one: KernelSource, kernels: Sequence[str] = ("gemm", "relu")) -> None:
    section(one, *kernels)
    gpu.fake_cuda_call()


def check_collectives_are_told_from_compute() -> None:
    one = source()
    step(one, ["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"])
    window = one.take()
    assert list(window.compute) == ["gemm<grid 1,1,1 block 64,1,1>"], window
    all_reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL<grid 1,1,1 block 64,1,1>"
    assert list(window.collectives) == [all_reduce], window
    assert window.records == 2


def check_kernels_that_end_after_the_window_are_still_measured() -> None:
    one = source(max_sections=20)
    for _ in range(20):
        one.start("fwd")
        launch("slow", end=0)
        one.stop()
    assert one._core.take().measured == 0
    gpu.fake_finish()
    for _ in range(cupti.SECTIONS_TO_DRAIN + 1):
        step(one)
    assert one.take().records == 20


def check_a_kernel_that_never_ends_does_not_hold_the_others_back() -> None:
    one = source(max_sections=20)
    for _ in range(20):
        step(one, ["gemm"])
    one._core.attach()
    launch("endless", end=0)
    for _ in range(cupti.SECTIONS_TO_DRAIN + 1):
        step(one, [])
    window = one.take()
    assert window.records == 20 and window.dropped == 1, window
    assert window.note == "CUPTI had no times for 1 kernels", window


def stays_attached(one: CuptiSource, finalised: int, why: str) -> None:
    for _ in range(3):
        for _ in range(20 + 10):
            step(one)
        window = one.take()
        assert (window.records, window.note) == (2 * 20, ""), window
    assert (gpu.fake_calls(Call.FINALIZE), gpu.fake_subscribed()) == (finalised, 0)
    head = f"INFO CUPTI stays attached to this process (pid {os.getpid()}) between reports, which may slow it down"
    assert logged == [f"{head}: {why}"], logged


def check_cupti_that_another_tool_subscribed_to_stays_attached_and_the_log_says_why() -> None:
    one = source(max_sections=20)
    gpu.fake_other_subscriber(1)
    stays_attached(one, 0, "cuptiSubscribe failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)")


def check_cupti_that_cannot_leave_stays_attached_and_the_log_says_why() -> None:
    one = source(max_sections=20)
    gpu.fake_fail(Call.FINALIZE, 999, 1)
    stays_attached(one, 1, "cuptiFinalize failed: CUPTI_ERROR_UNKNOWN (999)")


def check_errors_are_noted_and_tried_again_with_the_next_window() -> None:
    one = source()
    gpu.fake_fail(Call.ENABLE, 15, 1)
    step(one)
    step(one)
    window = one.take()
    why = "cuptiActivityEnable failed: CUPTI_ERROR_NOT_INITIALIZED (15)"
    assert window.note == why and window.records == 0, window
    assert gpu.fake_calls(Call.ENABLE) == 1
    step(one)
    assert one.take().records == 2


def check_the_profiler_of_torch_goes_first() -> None:
    one = source()
    stand_in_torch()
    profiler: Any = sys.modules["torch.autograd.profiler"]
    step(one)
    profiler._is_profiler_enabled = True
    gpu.fake_other_tool()
    before = calls_made()
    for _ in range(20 + 10):
        step(one)
    assert one.take().note == cupti._PROFILER
    assert calls_made() == before, "it was disturbed"
    profiler._is_profiler_enabled = False
    step(one)
    step(one)
    one.take()
    step(one, ["ours again"])
    window = one.take()
    assert list(window.compute) == ["ours again<grid 1,1,1 block 64,1,1>"] and window.note == "", window


def check_a_profiler_that_came_and_went_unseen_costs_one_window() -> None:
    one = source()
    step(one)
    gpu.fake_other_tool()
    step(one)
    assert one.take().note == (
        "CUPTI reported no kernel in 2 sections: they launch none, or another tool took its callbacks; they are "
        "registered anew"
    )
    gpu.fake_other_tool()
    launch("theirs")
    step(one)
    window = one.take()
    assert window.note == "another tool took CUPTI's callbacks; they are registered anew", window
    step(one)
    window = one.take()
    assert (window.records, window.note) == (2, ""), window


def check_several_empty_windows_are_warned_about_once() -> None:
    one = source()
    gpu.fake_fail(Call.REGISTER, 999, 5)
    for _ in range(5):
        step(one)
        one.take()
    assert logged == [
        f"WARNING no GPU kernel of this process (pid {os.getpid()}) was timed for {cupti.EMPTY_WINDOWS} reports: "
        "cuptiActivityRegisterCallbacks failed: CUPTI_ERROR_UNKNOWN (999). GPU scores of this rank are NaN until that "
        "changes"
    ], logged


def check_reports_without_sections_are_no_empty_windows() -> None:
    one = source()
    assert [one.take().note for _ in range(10)] == [""] * 10 and logged == []


def check_nothing_is_called_before_torch_uses_cuda() -> None:
    torch = stand_in_torch(in_use=False)
    one = choose()
    step(one)
    assert (one.take().records, one.reason) == (0, "CUDA is not initialised in this process yet")
    assert calls_made() == [0] * len(Call)
    works = ctypes.CDLL("libcuda.so.1").fake_cuda_works
    assert works() == 0
    torch.cuda.is_initialized = lambda: True
    step(one)
    assert one.take().records == 2 and works() == 1


def check_cupti_that_does_not_work_is_known_when_it_is_opened() -> None:
    """So that another source can be chosen."""
    stand_in_torch()
    gpu.fake_fail(Call.ENABLE, 999, 1)
    told = open_cupti()
    assert told == "cuptiActivityEnable failed: CUPTI_ERROR_UNKNOWN (999)", told
    one = open_cupti()
    assert not isinstance(one, str)
    section(one, "gemm")
    assert one.take().records == 1 and gpu.fake_calls(Call.ENABLE) == 2


def check_a_graph_that_is_captured_is_not_disturbed() -> None:
    torch = stand_in_torch()
    torch.cuda.is_current_stream_capturing = lambda: True
    one = choose()
    section(one, "gemm")
    assert calls_made() == [0] * len(Call)
    torch.cuda.is_current_stream_capturing = lambda: False
    section(one, "gemm")

    def broken() -> bool:
        raise RuntimeError("CUDA error")

    for capturing in (broken, lambda: True):
        before = calls_made()
        torch.cuda.is_current_stream_capturing = capturing
        section(one, "gemm")
        assert calls_made() == before
    assert one.take().records == 1


def check_closing_lets_cupti_leave_and_another_source_begins_empty() -> None:
    one = source()
    step(one)
    one.close()
    gpu.fake_cuda_call()
    assert gpu.fake_attached() == 0
    one = source()
    assert one.take().records == 0
    step(one)
    assert one.take().records == 2


# -- which sections' kernels are in a report: all that were profiled, and no others


def begin(**settings: int) -> None:
    stand_in_torch()
    Detector.initialize("individual_perf_scores", False, **settings)


def train(steps: int, first: int = 0) -> None:
    for number in range(first, first + steps):
        with Detector.detection_section("load", profile_cuda=False):
            launch("copy")
        with Detector.detection_section("fwd"):
            launch("gemm", 1000 + number)
        launch("optimizer")
        gpu.fake_cuda_call()


def report() -> tuple[dict[str, float], Report]:
    made = Detector.generate_report()
    assert made is not None
    summaries = made.local_kernel_summaries.items()
    return {name.partition("<")[0]: one[Statistic.NUM] for name, one in summaries}, made


def check_every_run_of_a_section_is_profiled() -> None:
    """A GPU that turns slow late in a window is seen in its report."""
    begin()
    for window in range(3):
        train(40, 40 * window)
        found, made = report()
        assert found == {"gemm": 40}, found
        (gemm,) = made.local_kernel_summaries.values()
        assert gemm[Statistic.MAX] == 1.039 + 0.04 * window, gemm
        assert (made.kernel_records, made.kernel_records_dropped, made.kernel_note) == (40, 0, ""), made
    assert gpu.fake_calls(Call.FINALIZE) == 0


def check_of_n_runs_one_is_profiled() -> None:
    begin(profiling_interval=4)
    for _ in range(2):
        train(40)
        found, _ = report()
        assert found == {"gemm": 10}, found


def check_max_profiled_sections_are_profiled_and_cupti_leaves() -> None:
    begin(max_profiled_sections=15)
    for window in range(1, 4):
        train(40)
        assert (gpu.fake_calls(Call.FINALIZE), gpu.fake_attached()) == (window, 0)
        found, made = report()
        assert found == {"gemm": 15} and made.kernel_note == "", (found, made)


def check_a_section_within_another_is_part_of_it_unless_it_is_not_to_be_profiled() -> None:
    for interval in (1, 4):
        begin(profiling_interval=interval)
        with Detector.detection_section("step"):
            train(3)
        found, made = report()
        assert found == {"gemm": 3, "optimizer": 3}, found
        assert (made.kernel_records, made.kernel_records_dropped, made.kernel_note) == (6, 0, ""), made
        Detector.shutdown()


def check_kernels_that_span_the_next_switching_on_do_not_count() -> None:
    begin()
    for number in range(300):
        now = 10_000 * number
        gpu.fake_set_now(ctypes.c_uint64(now))
        with Detector.detection_section("fwd"):
            launch("gemm", start=now + 10, end=now + 1010)
            if number == 5:
                launch("gemm", start=now + 1010, end=now + 10_000)
    _, made = report()
    (gemm,) = made.local_kernel_summaries.values()
    assert (gemm[Statistic.NUM], gemm[Statistic.MAX]) == (300, 1.0), gemm
    assert (made.kernel_records, made.kernel_records_dropped, made.kernel_note) == (300, 1, ""), made


def trained_with_an_old_cupti() -> tuple[dict[str, float], Report]:
    os.environ["FAKE_CUPTI_VERSION"] = "22"
    begin()
    event = SimpleNamespace(record=lambda _: None, query=lambda: True, elapsed_time=lambda _: 2.0)
    torch = sys.modules["torch"]
    torch.cuda.Event = lambda enable_timing: event
    torch.cuda.current_stream = lambda: SimpleNamespace(device_index=0)
    train(40)
    return report()


def check_a_cupti_that_cannot_leave_is_used_if_it_is_asked_for() -> None:
    os.environ["HOLDFAST_KERNEL_SOURCE"] = "cupti"
    found, made = trained_with_an_old_cupti()
    assert (made.kernel_source, made.kernel_source_reason, found) == ("cupti", "", {"gemm": 40}), made
    assert logged == []


def check_a_cupti_that_cannot_leave_is_not_used_unasked() -> None:
    found, made = trained_with_an_old_cupti()
    assert (made.kernel_source, found) == ("cuda_events", {"fwd": 40}), made
    assert gpu.fake_calls(Call.ENABLE) == gpu.fake_calls(Call.REGISTER) == 0
    assert logged == [
        "INFO GPU time is measured by CUDA events, a section at a time: cupti is not used: CUPTI before CUDA 12.5 "
        "(its version is 22) cannot leave the process, and slows the training while it stays. To time each kernel "
        "all the same, set HOLDFAST_KERNEL_SOURCE=cupti"
    ], logged


def check_why_there_is_none() -> None:
    def told(environment: dict[str, str], begins: str, ends: str = "") -> None:
        os.environ.update(environment)
        found = open_cupti()
        assert isinstance(found, str) and found.startswith(begins) and found.endswith(ends), found
        for name in environment:
            del os.environ[name]

    told({OVERRIDE: "/no/such.so"}, "no CUPTI library (/no/such.so: cannot open shared object")
    driver = str(Path(os.environ["FAKE_CUPTI"]).with_name("libcuda.so.1"))
    told({OVERRIDE: driver}, "no CUPTI library (", f"{driver} has no cuptiGetVersion)")
    told({}, "torch is not loaded")
    stand_in_torch(None)
    told({}, "torch is built without CUDA")
    stand_in_torch()
    profiler = "CUPTI is left to the profiler that started this process (CUDA_INJECTION64_PATH is set)"
    told({"CUDA_INJECTION64_PATH": "/opt/tool.so"}, profiler)
    cupti.LIBRARY = Path(sys.argv[1]) / "core.so"
    load_core.cache_clear()
    told({}, "the kernel core was not built (no C++ compiler when holdfast was installed)")
    cupti.LIBRARY.write_text("no library")
    load_core.cache_clear()
    told({}, "the kernel core cannot be loaded: ")


if __name__ == "__main__":
    run_checks(globals())
