"""Which sections' kernels are in a report: all that were profiled, and no others."""

from __future__ import annotations

import pytest

from tests.straggler.kernels.conftest import Run

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
