"""The source named cupti: its window of sections, when CUPTI is attached and gone, and to which tools it yields."""

from __future__ import annotations

import pytest

from holdfast.straggler.kernels import cupti
from tests.straggler.kernels.conftest import Run

STEPS = """
def step(kernels=("gemm", "relu"), between=()):
    one.start("fwd")
    for kernel in kernels:
        launch(kernel)
    one.stop()
    for kernel in between:
        launch(kernel)
    gpu.fake_cuda_call()
one = source()
"""


def test_collectives_are_told_from_compute(run: Run) -> None:
    run(
        STEPS
        + """
step(["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"])
window = one.take()
assert list(window.compute) == ["gemm<grid 1,1,1 block 64,1,1>"], window
assert list(window.collectives) == ["ncclDevKernel_AllReduce_Sum_f32_RING_LL<grid 1,1,1 block 64,1,1>"], window
assert window.records == 2
"""
    )


def test_kernels_that_end_after_the_window_are_still_measured(run: Run) -> None:
    run(
        STEPS
        + """
one = source(max_sections=20)
for _ in range(20):
    one.start("fwd"); launch("slow", end=0); one.stop()
assert one._core.take().measured == 0
gpu.fake_finish()
for _ in range(cupti.SECTIONS_TO_DRAIN + 1):
    step()
assert one.take().records == 20
"""
    )


def test_a_kernel_that_never_ends_does_not_hold_the_others_back(run: Run) -> None:
    run(
        STEPS
        + """
one = source(max_sections=20)
for _ in range(20):
    step(["gemm"])
one._core.attach(); launch("endless", end=0)
for _ in range(cupti.SECTIONS_TO_DRAIN + 1):
    step([])
window = one.take()
assert window.records == 20 and window.dropped == 1, window
assert window.note == "CUPTI had no times for 1 kernels", window
"""
    )


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (
            "gpu.fake_other_subscriber(1)",
            "cuptiSubscribe failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)",
        ),
        ("gpu.fake_fail(FINALIZE, 999, 1)", "cuptiFinalize failed: CUPTI_ERROR_UNKNOWN (999)"),
    ],
)
def test_cupti_that_cannot_leave_stays_attached_and_the_log_says_why(
    run: Run, prepare: str, why: str
) -> None:
    told = run(
        STEPS
        + f"""
one = source(max_sections=20)
{prepare}
for report in range(3):
    for _ in range(20 + 10):
        step()
    window = one.take()
    assert (window.records, window.note) == (2 * 20, ""), window
assert (gpu.fake_calls(FINALIZE), gpu.fake_subscribed()) == ({int("FINALIZE" in prepare)}, 0)
print(os.getpid())
"""
    )
    pid, line = told.splitlines()
    assert line == (
        f"INFO CUPTI stays attached to this process (pid {pid}) between reports, which may slow it down: {why}"
    )


def test_errors_are_noted_and_tried_again_with_the_next_window(run: Run) -> None:
    run(
        STEPS
        + """
gpu.fake_fail(CALLS.index("enable"), 15, 1)
step(); step()
window = one.take()
assert window.note == "cuptiActivityEnable failed: CUPTI_ERROR_NOT_INITIALIZED (15)" and window.records == 0, window
assert gpu.fake_calls(CALLS.index("enable")) == 1
step()
assert one.take().records == 2
"""
    )


def test_torch_s_profiler_goes_first(run: Run) -> None:
    run(
        STEPS
        + """
stand_in_torch()
profiler = sys.modules["torch.autograd.profiler"]
step()
profiler._is_profiler_enabled = True
gpu.fake_other_tool()
before = [gpu.fake_calls(call) for call in range(len(CALLS))]
for _ in range(20 + 10):
    step()
assert one.take().note == cupti._PROFILER
assert [gpu.fake_calls(call) for call in range(len(CALLS))] == before, "it was disturbed"
profiler._is_profiler_enabled = False
step()
step()
one.take()
step(["ours again"])
window = one.take()
assert list(window.compute) == ["ours again<grid 1,1,1 block 64,1,1>"] and window.note == "", window
"""
    )


def test_a_profiler_that_came_and_went_unseen_costs_one_window(run: Run) -> None:
    run(
        STEPS
        + """
step()
gpu.fake_other_tool()
step()
assert one.take().note == (
    "CUPTI reported no kernel in 2 sections: they launch none, or another tool took its callbacks; they are "
    "registered anew")
gpu.fake_other_tool()
launch("theirs")
step()
window = one.take()
assert window.note == "another tool took CUPTI's callbacks; they are registered anew", window
step()
window = one.take()
assert (window.records, window.note) == (2, ""), window
"""
    )


def test_several_empty_windows_are_warned_about_once(run: Run) -> None:
    told = run(
        STEPS
        + """
gpu.fake_fail(CALLS.index("register"), 999, 5)
for _ in range(5):
    step()
    one.take()
print(os.getpid())
"""
    )
    pid, *warnings = told.splitlines()
    assert warnings == [
        f"WARNING no GPU kernel of this process (pid {pid}) was timed for {cupti.EMPTY_WINDOWS} reports: "
        "cuptiActivityRegisterCallbacks failed: CUPTI_ERROR_UNKNOWN (999). GPU scores of this rank are NaN until that "
        "changes"
    ]


def test_reports_without_sections_are_no_empty_windows(run: Run) -> None:
    assert run(STEPS + "for _ in range(10): assert one.take().note == ''") == ""


def test_nothing_is_called_before_torch_uses_cuda(run: Run) -> None:
    run(
        STEPS
        + """
torch = stand_in_torch(in_use=False)
from holdfast.straggler.kernels.choose import choose
one = choose()
step()
window = one.take()
assert (window.records, one.reason) == (0, "CUDA is not initialised in this process yet"), window
assert [gpu.fake_calls(call) for call in range(len(CALLS))] == [0] * len(CALLS)
works = ctypes.CDLL("libcuda.so.1").fake_cuda_works
assert works() == 0
torch.cuda.is_initialized = lambda: True
step()
assert one.take().records == 2 and works() == 1
"""
    )


def test_cupti_that_does_not_work_is_known_when_it_is_opened(run: Run) -> None:
    """So that another source can be chosen."""
    run(
        """
stand_in_torch()
gpu.fake_fail(CALLS.index("enable"), 999, 1)
told = open_cupti()
assert told == "cuptiActivityEnable failed: CUPTI_ERROR_UNKNOWN (999)", told
one = open_cupti()
assert not isinstance(one, str)
one.start("fwd"); launch("gemm"); one.stop()
assert one.take().records == 1 and gpu.fake_calls(CALLS.index("enable")) == 2
"""
    )


def test_a_graph_that_is_captured_is_not_disturbed(run: Run) -> None:
    run(
        """
torch = stand_in_torch()
torch.cuda.is_current_stream_capturing = lambda: True
from holdfast.straggler.kernels.choose import choose
one = choose()
one.start("fwd"); launch("gemm"); one.stop()
assert [gpu.fake_calls(call) for call in range(len(CALLS))] == [0] * len(CALLS)
torch.cuda.is_current_stream_capturing = lambda: False
one.start("fwd"); launch("gemm"); one.stop()
def broken(): raise RuntimeError("CUDA error")
for capturing in (broken, lambda: True):
    before = [gpu.fake_calls(call) for call in range(len(CALLS))]
    torch.cuda.is_current_stream_capturing = capturing
    one.start("fwd"); launch("gemm"); one.stop()
    assert [gpu.fake_calls(call) for call in range(len(CALLS))] == before
assert one.take().records == 1
"""
    )


def test_closing_lets_cupti_leave_and_another_source_begins_empty(run: Run) -> None:
    run(
        STEPS
        + """
step()
one.close()
gpu.fake_cuda_call()
assert gpu.fake_attached() == 0
one = source()
assert one.take().records == 0
step()
assert one.take().records == 2
"""
    )
