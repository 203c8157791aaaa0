"""The kernel core against a fake libcupti: what it counts, what it loses and reports, and what it disturbs."""

from __future__ import annotations

import pytest

from tests.straggler.kernels.conftest import Run


@pytest.mark.parametrize(
    ("sizes", "major"),
    [((144, 152, 160, 168, 200, 208, 216, 224, 232, 248), 13), ((144, 248), 12)],
)
def test_records_of_every_size(run: Run, sizes: tuple[int, ...], major: int) -> None:
    """A buffer holds records of one size; the next one is asked for when it is complete."""
    run(
        f"""
core = attached()
for size in {sizes}:
    gpu.fake_set_record_size(ctypes.c_uint64(size))
    durations = [1500, 2500, 2600, 90_000]
    for duration in durations:
        launch("gemm", duration, grid=(128, 2, 3), block=(256, 4, 5))
    gpu.fake_other_record()
    launch("relu", 700)
    assert core.take().measured == 0
    assert core.flush(forced=False) == ""
    taken = core.take()
    assert (taken.measured, taken.untimed, taken.dropped, taken.foreign) == (5, 0, 0, 0), (size, taken)
    gemm, relu = sorted(kernels(taken), key=lambda kernel: kernel.key)
    assert gemm.key == "gemm<grid 128,2,3 block 256,4,5>" and gemm.name == "gemm", gemm
    exact = summarise([duration / 1e3 for duration in durations])
    for statistic in Statistic:
        assert abs(gemm.summary[statistic] - exact[statistic]) <= 0.016 * exact[statistic], (statistic, gemm, exact)
    assert relu.summary[Statistic.NUM] == 1 and relu.summary[Statistic.MED] == 0.7, relu
    assert relu.summary[Statistic.STD] != relu.summary[Statistic.STD]
    assert core.take().kernels == {{}} and core.buffers_out == 0
""",
        major=major,
    )


def test_the_histogram_s_median_is_as_exact_as_promised(run: Run) -> None:
    run(
        """
from hypothesis import given, settings, strategies as st
core = attached()
def some(times): return st.lists(times, min_size=1, max_size=60)
near = st.integers(0, 2**50).flatmap(lambda low: some(st.integers(low, low + 1 + low // 8)))
anywhere = some(st.integers(0, 2**50) | st.integers(0, 5000))
@settings(deadline=None, derandomize=True, database=None, max_examples=500)
@given(near | anywhere)
def check(durations):
    for duration in durations:
        launch("gemm", duration)
    assert core.flush(forced=False) == ""
    (kernel,) = kernels(core.take())
    exact = summarise(durations)
    found = {statistic: kernel.summary[statistic] * 1e3 for statistic in exact}
    assert kernel.summary[Statistic.NUM] == len(durations)
    assert abs(found[Statistic.MED] - exact[Statistic.MED]) <= exact[Statistic.MED] / 64 + 1e-6, (found, exact)
    for statistic in (Statistic.MIN, Statistic.MAX, Statistic.AVG):
        assert abs(found[statistic] - exact[statistic]) <= 1e-9 * exact[statistic] + 1e-6, (found, exact)
    if len(durations) > 1:
        assert abs(found[Statistic.STD] - exact[Statistic.STD]) <= 1e-6 * exact[Statistic.MAX] + 1e-3, (found, exact)
check()
"""
    )


def test_what_has_no_times_or_was_dropped_is_counted(run: Run) -> None:
    run(
        """
core = attached()
launch("good", 1000)
launch("no start", start=0, end=5)
launch("neither", start=0, end=0)
launch("backwards", start=500, end=400)
gpu.fake_lose(ctypes.c_uint64(7))
assert core.flush(forced=False) == ""
taken = core.take()
assert (taken.measured, taken.untimed, taken.dropped) == (1, 3, 7), taken
assert [kernel.name for kernel in kernels(taken)] == ["good"]
"""
    )


def test_kernels_that_still_run_come_when_they_have_ended_or_are_counted_without_times(run: Run) -> None:
    run(
        """
core = attached()
launch("running", end=0)
launch("done", 1000)
assert core.flush(forced=False) == "" and core.take().measured == 0  # CUPTI keeps the whole buffer
gpu.fake_finish()
assert core.flush(forced=False) == "" and core.take().measured == 2
launch("running", end=0)
assert core.flush(forced=True) == ""
taken = core.take()
assert (taken.measured, taken.untimed) == (0, 1) and core.buffers_out == 0
"""
    )


def test_cupti_is_never_refused_a_buffer(run: Run) -> None:
    """300 buffers are out at once, because one kernel in each still runs; all records arrive in the end."""
    run(
        """
core = attached()
launched = 0
while core.buffers_out < 300:
    launch("slow", end=0)
    assert launch_many(["fast"], 60, 1000) == 60
    launched += 61
gpu.fake_finish()
assert core.flush(forced=False) == ""
taken = core.take()
assert (taken.measured, taken.dropped, core.buffers_out) == (launched, 0, 0), (taken, launched)
"""
    )


def test_shapes_without_end_are_folded_into_the_name(run: Run) -> None:
    run(
        """
core = attached()
for window in range(2):  # the table begins anew after it was full
    for i in range(1000):
        launch("dynamic", 1000 + i, grid=(i + 1, 1, 1))
    launch("fixed", 5)
    assert core.flush(forced=False) == ""
    taken = core.take()
    assert (taken.measured, taken.unmeasured) == (1001, 0)
    counts = {kernel.key: kernel.summary[Statistic.NUM] for kernel in kernels(taken)}
    assert len(counts) == 256 + 1 + 1 and counts["dynamic<other shapes>"] == 744, counts
    assert counts["fixed<grid 1,1,1 block 64,1,1>"] == 1
"""
    )


def test_names_without_end_are_bounded(run: Run) -> None:
    run(
        """
core = attached()
for i in range(9000):
    launch(f"jit_{i}", 1000)
assert core.flush(forced=False) == ""
taken = core.take()
assert taken.measured + taken.unmeasured == 9000 and len(taken.kernels) == taken.measured == 4096, taken
launch("jit_8999")
assert core.flush(forced=False) == ""
assert [kernel.name for kernel in kernels(core.take())] == ["jit_8999"]
"""
    )


def test_memory_of_a_name_that_is_used_for_another(run: Run) -> None:
    run(
        """
core = attached()
memory = ctypes.create_string_buffer(b"first", 64)
other = ctypes.create_string_buffer(b"second", 64)
for text, times in ((b"first", 3), (b"second", 2), (b"first", 4)):
    memory.value = text
    for _ in range(times):
        launch(memory, 1000)
    launch(other, 1000)
    assert core.flush(forced=False) == ""
    counts = {kernel.name: kernel.summary[Statistic.NUM] for kernel in kernels(core.take())}
    expected = {"first": times, "second": 1} if text == b"first" else {"second": times + 1}
    assert counts == expected, (counts, expected)
# Within a window: after some ten thousand records at the latest.
memory.value = b"third"
launch_many(["filler"], 17_000, 10)
launch(memory, 1000)
assert core.flush(forced=False) == ""
assert {kernel.name for kernel in kernels(core.take())} == {"filler", "third"}
"""
    )


def test_names_are_for_people(run: Run) -> None:
    run(
        """
core = attached()
def mangled(parameters): return "_Z4gemmI" + "Li128E" * parameters
others = [mangled(120) + f"Li{end}EEvPf" for end in (1, 2)]
others += [mangled(300) + f"Li{end}EEvPf" for end in (1, 2)]  # too long to be demangled
for name in ("_Z4reluIfEvPT_i", "i", "_Z broken", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "", *others):
    launch(name)
launch(None)
no_text = ctypes.create_string_buffer(b"\\xff\\xfe")
launch(no_text)
assert core.flush(forced=False) == ""
names = {kernel.name for kernel in kernels(core.take())}
plain = {"void relu<float>(float*, int)", "i", "_Z broken", "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
         "(a kernel without a name)", "\\ufffd\\ufffd"}
assert plain <= names, names
cut = names - plain
assert len(cut) == 4 and all(len(name) == 500 for name in cut), cut
assert sum(name.startswith("void gemm<128, 128") for name in cut) == 2, cut
"""
    )


def test_threads_that_launch_while_another_takes(run: Run) -> None:
    run(
        """
core = attached()
names = [f"kernel_{i}" for i in range(50)]
for name in names: named(name)
threads = [threading.Thread(target=launch_many, args=(names, 100_000, 2000)) for _ in range(4)]
for thread in threads: thread.start()
total, launching = 0, True
while launching:
    launching = any(thread.is_alive() for thread in threads)
    assert core.flush(forced=False) == ""
    total += core.take().measured
assert total == 400_000 and core.buffers_out == 0, (total, core.buffers_out)
"""
    )


def test_a_forked_child_touches_nothing(run: Run) -> None:
    run(
        """
core = attached()
launch("parent")
before = [gpu.fake_calls(call) for call in range(len(CALLS))]
child = os.fork()
if child == 0:
    ok = all("forked" in told for told in (core.attach(), core.flush(False), core.pause(), core.detach()))
    ok = ok and core.take().kernels == {} and [gpu.fake_calls(call) for call in range(len(CALLS))] == before
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert core.flush(forced=False) == ""
assert core.take().measured == 1
"""
    )


@pytest.mark.parametrize(
    ("call", "function", "error", "name"),
    [
        ("register", "cuptiActivityRegisterCallbacks", 15, "NOT_INITIALIZED"),
        ("clock", "cuptiActivityRegisterTimestampCallback", 999, "UNKNOWN"),
        ("enable", "cuptiActivityEnable", 39, "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"),
        ("disable", "cuptiActivityDisable", 999, "UNKNOWN"),
        ("flush", "cuptiActivityFlushAll", 999, "UNKNOWN"),
    ],
)
def test_errors_are_told_by_name(run: Run, call: str, function: str, error: int, name: str) -> None:
    run(
        f"""
core = attached()
gpu.fake_fail(CALLS.index("{call}"), {error}, 1)
fails = {{"flush": lambda: core.flush(False), "disable": core.pause}}.get("{call}", core.attach)
told = fails()
assert told == "{function} failed: CUPTI_ERROR_{name} ({error})", told
"""
    )


def test_another_tool_takes_the_callbacks_and_gives_them_back(run: Run) -> None:
    run(
        """
core = attached()
launch("ours")
gpu.fake_other_tool()
launch("theirs")  # in the buffer that is ours: the other tool is given it, and does not know it
assert core.flush(forced=False) == ""
launch("theirs")  # in theirs
assert gpu.fake_other_tool_records() == 2 and core.take().measured == 0
assert core.attach() == ""
launch("ours again")  # still in theirs
assert core.flush(forced=False) == ""
taken = core.take()
assert (taken.measured, taken.foreign) == (0, 1), taken
launch("ours at last")
assert core.flush(forced=False) == ""
assert [kernel.name for kernel in kernels(core.take())] == ["ours at last"]
assert core.buffers_out == 1  # the one that was lost
"""
    )


def test_times_are_nanoseconds_again_after_another_tool_s_clock(run: Run) -> None:
    """torch.profiler has CUPTI count cycles, and does not take that back."""
    run(
        """
core = attached()
gpu.fake_other_tool()
launch("theirs", 1000)
assert core.flush(forced=True) == "" and core.attach() == ""
launch("ours", 1000)
assert core.flush(forced=False) == ""
(ours,) = kernels(core.take())
assert ours.summary[Statistic.AVG] == 1.0, ours  # microseconds
"""
    )


def test_no_clock_can_be_set_and_nobody_has_set_another(run: Run) -> None:
    run(
        """
import time
core = attached()
gpu.fake_set_now(ctypes.c_uint64(time.time_ns()))
gpu.fake_fail(CALLS.index("clock"), 39, 1)
assert core.attach() == ""
launch("ours", 1000, start=time.time_ns() + 1000)
assert core.flush(forced=False) == "" and core.take().measured == 1
"""
    )


def test_cupti_leaves_with_the_end_of_a_cuda_call(run: Run) -> None:
    run(
        """
core = attached()
for window in range(1, 4):
    launch("gemm")
    assert core.pause() == "" and core.flush(forced=True) == "" and core.detach() == ""
    assert core.detach() == "" and gpu.fake_attached() == 1 and core.times_left == window - 1
    gpu.fake_cuda_call()
    assert gpu.fake_attached() == 0 and core.times_left == window == gpu.fake_calls(FINALIZE)
    gpu.fake_cuda_call()
    assert gpu.fake_calls(FINALIZE) == window
    assert core.take().measured == 1 and core.attach() == ""
# Asked to leave, and wanted again before any call of CUDA:
assert core.detach() == "" and core.attach() == ""
gpu.fake_cuda_call()
launch("gemm")
assert core.flush(forced=False) == "" and core.take().measured == 1 and core.times_left == 3
"""
    )


def test_buffers_that_were_lost_are_freed_when_cupti_left_twice(run: Run) -> None:
    run(
        """
core = attached()
for window, out in enumerate((1, 1, 1), start=1):
    launch("never ends", end=0)
    assert core.pause() == "" and core.detach() == ""  # without collecting by force
    gpu.fake_cuda_call()
    assert core.times_left == window and core.buffers_out <= 2, core.buffers_out
    assert core.attach() == ""
"""
    )


def test_cupti_stays_where_another_tool_has_subscribed(run: Run) -> None:
    run(
        """
core = attached()
gpu.fake_other_subscriber(1)
assert core.detach() == "cuptiSubscribe failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
gpu.fake_cuda_call()
assert gpu.fake_calls(FINALIZE) == 0
gpu.fake_other_subscriber(0)
gpu.fake_fail(CALLS.index("domain"), 999, 1)
assert core.detach() == "cuptiEnableDomain failed: CUPTI_ERROR_UNKNOWN (999)"
assert gpu.fake_calls(CALLS.index("unsubscribe")) == 1
gpu.fake_cuda_call()
assert gpu.fake_calls(FINALIZE) == 0
"""
    )


CALLS_OF_OTHER_THREADS = """
core = attached()
DOMAIN, UNSUBSCRIBE = CALLS.index("domain"), CALLS.index("unsubscribe")
def call_of_another_thread():
    thread = threading.Thread(target=gpu.fake_cuda_call)
    thread.start()
    thread.join()
@ctypes.CFUNCTYPE(None)
def calls(): call_of_another_thread()
@ctypes.CFUNCTYPE(None)
def calls_and_then_no_more_works():
    call_of_another_thread()
    gpu.fake_fail(DOMAIN, 999, 1)
"""


def test_cupti_does_not_leave_while_it_is_still_asked_to(run: Run) -> None:
    """Another thread calls CUDA after the first of the two domains: finalised then, CUPTI would be called with a
    subscriber that is gone, and the fake ends the process."""
    run(
        CALLS_OF_OTHER_THREADS
        + """
gpu.fake_after(DOMAIN, calls)
assert core.detach() == "" and gpu.fake_calls(FINALIZE) == 0 and gpu.fake_calls(DOMAIN) == 2
call_of_another_thread()
assert gpu.fake_attached() == 0 and core.times_left == gpu.fake_calls(FINALIZE) == 1
assert core.attach() == ""
gpu.fake_after(DOMAIN, calls_and_then_no_more_works)
assert core.detach() == "cuptiEnableDomain failed: CUPTI_ERROR_UNKNOWN (999)"
call_of_another_thread()
assert (gpu.fake_calls(FINALIZE), gpu.fake_calls(UNSUBSCRIBE), gpu.fake_subscribed()) == (1, 1, 0)
launch("gemm")
assert core.flush(forced=False) == "" and core.take().measured == 1
assert core.detach() == ""
call_of_another_thread()
assert gpu.fake_attached() == 0 and core.times_left == 2
"""
    )


@pytest.mark.parametrize("call", ["attach", "detach"])
def test_cupti_that_would_not_leave_is_left_alone_and_says_why(run: Run, call: str) -> None:
    """Subscribed forever, each call of CUDA would run the callback, and no profiler could subscribe."""
    run(
        CALLS_OF_OTHER_THREADS
        + f"""
gpu.fake_fail(FINALIZE, 999, 1)
assert core.detach() == ""
call_of_another_thread()
assert gpu.fake_subscribed() == 1, "not from the callback: CUPTI is on its stack"
told = core.{call}()
assert (gpu.fake_calls(UNSUBSCRIBE), gpu.fake_subscribed()) == (1, 0)
for _ in range(2):
    assert core.attach() == ""
    launch("gemm")
    assert core.flush(forced=False) == "" and core.take().measured == 1
    why = core.detach()
    assert why == "cuptiFinalize failed: CUPTI_ERROR_UNKNOWN (999)", why
    assert told in ("", why), told
    call_of_another_thread()
    assert (gpu.fake_calls(FINALIZE), gpu.fake_subscribed(), core.times_left) == (1, 0, 0)
"""
    )


def test_a_subscription_that_would_not_end_is_ended_later(run: Run) -> None:
    run(
        CALLS_OF_OTHER_THREADS
        + """
gpu.fake_fail(UNSUBSCRIBE, 999, 3)
assert core.detach() == ""
for _ in range(2):  # it was wanted again before it left
    assert core.attach() == "cuptiUnsubscribe failed: CUPTI_ERROR_UNKNOWN (999)"
    call_of_another_thread()
    assert (gpu.fake_calls(FINALIZE), gpu.fake_subscribed()) == (0, 1)
assert core.detach() == "cuptiUnsubscribe failed: CUPTI_ERROR_UNKNOWN (999)"
assert core.attach() == "" and gpu.fake_subscribed() == 0
assert core.detach() == ""
call_of_another_thread()
assert gpu.fake_attached() == 0 and core.times_left == 1
"""
    )


def test_an_old_cupti_stays(run: Run) -> None:
    run(
        """
core = attached()
assert core.detach() == "CUPTI before CUDA 12.5 (its version is 22) may crash when it leaves"
""",
        FAKE_CUPTI_VERSION="22",
    )


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"FAKE_CUDA_INIT": "100"}, "cuInit failed with error 100"),
        ({"FAKE_CUDA_DEVICES": "0"}, "the CUDA driver sees no device"),
    ],
)
def test_cupti_is_not_called_where_the_driver_does_not_work(
    run: Run, environment: dict[str, str], reason: str
) -> None:
    """The fake ends the process if it is."""
    run(
        f"""
core = load_core()
assert core.open(os.environ["FAKE_CUPTI"], False) == ""
for told in (core.attach(), core.pause(), core.flush(True), core.detach()):
    assert told == {reason!r}, told
assert core.take().measured == 0
""",
        **environment,
    )
