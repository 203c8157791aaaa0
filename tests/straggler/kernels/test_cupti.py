"""The source named cupti: whose kernels it reports, when CUPTI is attached and gone, to which tools it yields."""

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


# -- which sections' kernels are in a report: all that were profiled, and no others


TRAINING = """
from holdfast.straggler import Detector
stand_in_torch()
def begin(**settings):
    Detector.initialize("individual_perf_scores", False, **settings)
def train(steps, first=0):
    for step in range(first, first + steps):
        with Detector.detection_section("load", profile_cuda=False):
            launch("copy")
        with Detector.detection_section("fwd"):
            launch("gemm", 1000 + step)
        launch("optimizer")
        gpu.fake_cuda_call()
def report():
    made = Detector.generate_report()
    found = {name.partition("<")[0]: one[Statistic.NUM] for name, one in made.local_kernel_summaries.items()}
    return found, made
"""


def test_every_run_of_a_section_is_profiled(run: Run) -> None:
    """A GPU that turns slow late in a window is seen in its report."""
    run(
        TRAINING
        + """
begin()
for window in range(3):
    train(40, 40 * window)
    found, made = report()
    assert found == {"gemm": 40}, found
    (gemm,) = made.local_kernel_summaries.values()
    assert gemm[Statistic.MAX] == 1.039 + 0.04 * window, gemm
    assert (made.kernel_records, made.kernel_records_dropped, made.kernel_note) == (40, 0, ""), made
assert gpu.fake_calls(FINALIZE) == 0
"""
    )


def test_of_n_runs_one_is_profiled(run: Run) -> None:
    run(
        TRAINING
        + """
begin(profiling_interval=4)
for window in range(2):
    train(40)
    found, made = report()
    assert found == {"gemm": 10}, found
"""
    )


def test_max_profiled_sections_are_profiled_and_cupti_leaves(run: Run) -> None:
    run(
        TRAINING
        + """
begin(max_profiled_sections=15)
for window in range(1, 4):
    train(40)
    assert (gpu.fake_calls(FINALIZE), gpu.fake_attached()) == (window, 0)
    found, made = report()
    assert found == {"gemm": 15} and made.kernel_note == "", (found, made)
"""
    )


@pytest.mark.parametrize("interval", [1, 4])
def test_a_section_within_another_counts_as_part_of_it_unless_it_is_not_to_be_profiled(
    run: Run, interval: int
) -> None:
    run(
        TRAINING
        + f"""
begin(profiling_interval={interval})
with Detector.detection_section("step"):
    train(3)
found, made = report()
assert found == {{"gemm": 3, "optimizer": 3}}, found
assert (made.kernel_records, made.kernel_records_dropped, made.kernel_note) == (6, 0, ""), made
"""
    )


def test_kernels_that_span_the_next_switching_on_do_not_count(run: Run) -> None:
    run(
        TRAINING
        + """
begin()
for step in range(300):
    gpu.fake_set_now(ctypes.c_uint64(10_000 * step))
    with Detector.detection_section("fwd"):
        launch("gemm", start=10_000 * step + 10, end=10_000 * step + 1010)
        if step == 5:
            launch("gemm", start=10_000 * step + 1010, end=10_000 * (step + 1))
found, made = report()
(gemm,) = made.local_kernel_summaries.values()
assert (gemm[Statistic.NUM], gemm[Statistic.MAX]) == (300, 1.0), gemm
assert (made.kernel_records, made.kernel_records_dropped, made.kernel_note) == (300, 1, ""), made
"""
    )


@pytest.mark.parametrize("asked", [None, "cupti"])
def test_a_cupti_that_cannot_leave_is_used_if_it_is_asked_for(run: Run, asked: str | None) -> None:
    log = run(
        TRAINING
        + f"""
torch = sys.modules["torch"]
class Event:
    def __init__(self, enable_timing): pass
    def record(self, stream): pass
    def query(self): return True
    def elapsed_time(self, end): return 2.0
torch.cuda.Event, torch.cuda.current_stream = Event, lambda: types.SimpleNamespace(device_index=0)
begin()
train(40)
found, made = report()
if {asked!r}:
    assert (made.kernel_source, made.kernel_source_reason, found) == ("cupti", "", {{"gemm": 40}}), made
else:
    assert (made.kernel_source, found) == ("cuda_events", {{"fwd": 40}}), made
    assert gpu.fake_calls(CALLS.index("enable")) == gpu.fake_calls(CALLS.index("register")) == 0
""",
        HOLDFAST_KERNEL_SOURCE=asked,
        FAKE_CUPTI_VERSION="22",
    )
    expected = (
        ""
        if asked
        else (
            "INFO GPU time is measured by CUDA events, a section at a time: cupti is not used: CUPTI before CUDA 12.5 "
            "(its version is 22) cannot leave the process, and slows the training while it stays. To time each kernel "
            "all the same, set HOLDFAST_KERNEL_SOURCE=cupti"
        )
    )
    assert log == expected


def test_a_profiler_that_warms_up_goes_first() -> None:
    torch = pytest.importorskip("torch")
    from holdfast.straggler.kernels.cupti import _profiler_is_active

    found = [_profiler_is_active()]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1),
    ) as profiler:
        for _ in range(3):
            found.append(_profiler_is_active())
            profiler.step()
    assert [*found, _profiler_is_active()] == [False, True, True, True, False]
