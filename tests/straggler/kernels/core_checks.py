"""The kernel core against a fake libcupti: what it counts, what it loses and reports, and what it disturbs.

Each function `check_*` is a test, in a process of its own: see `run_checks`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.straggler.kernels.cupti import CoreWindow, load_core
from holdfast.straggler.scores import Statistic, summarise
from tests.straggler.kernels.fake import (
    Call,
    CountedCore,
    attached,
    calls_made,
    gpu,
    kernels,
    launch,
    launch_many,
    named,
    run_checks,
)


def collected(core: CountedCore) -> CoreWindow:
    assert core.flush(forced=False) == ""
    return core.take()


def records_of(*sizes: int) -> None:
    """A buffer holds records of one size; the next one is asked for when it is complete."""
    core = attached()
    for size in sizes:
        gpu.fake_set_record_size(ctypes.c_uint64(size))
        durations = [1500, 2500, 2600, 90_000]
        for duration in durations:
            launch("gemm", duration, grid=(128, 2, 3), block=(256, 4, 5))
        gpu.fake_other_record()
        launch("relu", 700)
        assert core.take().measured == 0
        taken = collected(core)
        assert (taken.measured, taken.untimed, taken.dropped, taken.foreign) == (5, 0, 0, 0), (size, taken)
        gemm, relu = sorted(kernels(taken), key=lambda kernel: kernel.key)
        assert gemm.key == "gemm<grid 128,2,3 block 256,4,5>" and gemm.name == "gemm", gemm
        exact = summarise([duration / 1e3 for duration in durations])
        for statistic in Statistic:
            error = abs(gemm.summary[statistic] - exact[statistic])
            assert error <= 0.016 * exact[statistic], (statistic, gemm, exact)
        assert relu.summary[Statistic.NUM] == 1 and relu.summary[Statistic.MED] == 0.7, relu
        assert relu.summary[Statistic.STD] != relu.summary[Statistic.STD]
        assert core.take().kernels == {} and core.buffers_out == 0


def check_records_of_every_size() -> None:
    records_of(144, 152, 160, 168, 200, 208, 216, 224, 232, 248)


def check_the_median_of_the_histogram_is_as_exact_as_promised() -> None:
    core = attached()

    def some(times: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
        return st.lists(times, min_size=1, max_size=60)

    near = st.integers(0, 2**50).flatmap(lambda low: some(st.integers(low, low + 1 + low // 8)))
    anywhere = some(st.integers(0, 2**50) | st.integers(0, 5000))

    @settings(deadline=None, derandomize=True, database=None, max_examples=500)
    @given(near | anywhere)
    def check(durations: list[int]) -> None:
        for duration in durations:
            launch("gemm", duration)
        (kernel,) = kernels(collected(core))
        exact = summarise(durations)
        found = {statistic: kernel.summary[statistic] * 1e3 for statistic in exact}
        assert kernel.summary[Statistic.NUM] == len(durations)

        def close(statistic: Statistic, allowed: float) -> None:
            assert abs(found[statistic] - exact[statistic]) <= allowed, (statistic, found, exact)

        close(Statistic.MED, exact[Statistic.MED] / 64 + 1e-6)
        for statistic in (Statistic.MIN, Statistic.MAX, Statistic.AVG):
            close(statistic, 1e-9 * exact[statistic] + 1e-6)
        if len(durations) > 1:
            close(Statistic.STD, 1e-6 * exact[Statistic.MAX] + 1e-3)

    check()


def check_what_has_no_times_or_was_dropped_is_counted() -> None:
    core = attached()
    launch("good", 1000)
    launch("no start", start=0, end=5)
    launch("neither", start=0, end=0)
    launch("backwards", start=500, end=400)
    gpu.fake_lose(ctypes.c_uint64(7))
    taken = collected(core)
    assert (taken.measured, taken.untimed, taken.dropped) == (1, 3, 7), taken
    assert [kernel.name for kernel in kernels(taken)] == ["good"]


def check_kernels_that_still_run_come_when_they_have_ended_or_are_counted_without_times() -> None:
    core = attached()
    launch("running", end=0)
    launch("done", 1000)
    assert collected(core).measured == 0  # CUPTI keeps the whole buffer
    gpu.fake_finish()
    assert collected(core).measured == 2
    launch("running", end=0)
    assert core.flush(forced=True) == ""
    taken = core.take()
    assert (taken.measured, taken.untimed) == (0, 1) and core.buffers_out == 0


def check_cupti_is_never_refused_a_buffer() -> None:
    """300 buffers are out at once, because one kernel in each still runs; all records arrive in the end."""
    core = attached()
    launched = 0
    while core.buffers_out < 300:
        launch("slow", end=0)
        assert launch_many(["fast"], 60, 1000) == 60
        launched += 61
    gpu.fake_finish()
    taken = collected(core)
    assert (taken.measured, taken.dropped, core.buffers_out) == (launched, 0, 0), (taken, launched)


def check_shapes_without_end_are_folded_into_the_name() -> None:
    core = attached()
    for _ in range(2):  # the table begins anew after it was full
        for i in range(1000):
            launch("dynamic", 1000 + i, grid=(i + 1, 1, 1))
        launch("fixed", 5)
        taken = collected(core)
        assert (taken.measured, taken.unmeasured) == (1001, 0)
        counts = {kernel.key: kernel.summary[Statistic.NUM] for kernel in kernels(taken)}
        assert len(counts) == 256 + 1 + 1 and counts["dynamic<other shapes>"] == 744, counts
        assert counts["fixed<grid 1,1,1 block 64,1,1>"] == 1


def check_names_without_end_are_bounded() -> None:
    core = attached()
    for i in range(9000):
        launch(f"jit_{i}", 1000)
    taken = collected(core)
    assert taken.measured + taken.unmeasured == 9000 and len(taken.kernels) == taken.measured == 4096, taken
    launch("jit_8999")
    assert [kernel.name for kernel in kernels(collected(core))] == ["jit_8999"]


def check_memory_of_a_name_that_is_used_for_another() -> None:
    core = attached()
    memory = ctypes.create_string_buffer(b"first", 64)
    other = ctypes.create_string_buffer(b"second", 64)
    for text, times in ((b"first", 3), (b"second", 2), (b"first", 4)):
        memory.value = text
        for _ in range(times):
            launch(memory, 1000)
        launch(other, 1000)
        counts = {kernel.name: kernel.summary[Statistic.NUM] for kernel in kernels(collected(core))}
        expected = {"first": times, "second": 1} if text == b"first" else {"second": times + 1}
        assert counts == expected, (counts, expected)
    # Within a window: after some ten thousand records at the latest.
    memory.value = b"third"
    launch_many(["filler"], 17_000, 10)
    launch(memory, 1000)
    assert {kernel.name for kernel in kernels(collected(core))} == {"filler", "third"}


def check_names_are_for_people() -> None:
    core = attached()
    plain = {"_Z4reluIfEvPT_i": "void relu<float>(float*, int)", "": "(a kernel without a name)"}
    plain |= {name: name for name in ("i", "_Z broken", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")}
    long = {f"_Z4gemmI{'Li128E' * parameters}Li{end}EEvPf" for parameters in (120, 300) for end in (1, 2)}
    for name in (*plain, *long):
        launch(name)
    launch(None)
    no_text = ctypes.create_string_buffer(b"\xff\xfe")
    launch(no_text)
    found = {kernel.name for kernel in kernels(collected(core))}
    expected = {*plain.values(), "\ufffd\ufffd"}
    assert expected <= found, found
    cut = found - expected
    assert len(cut) == 4 and all(len(name) == 500 for name in cut), cut
    # The others are too long to be demangled.
    assert sum(name.startswith("void gemm<128, 128") for name in cut) == 2, cut


def check_threads_that_launch_while_another_takes() -> None:
    core = attached()
    kinds = [f"kernel_{i}" for i in range(50)]
    for name in kinds:
        named(name)
    threads = [threading.Thread(target=launch_many, args=(kinds, 100_000, 2000)) for _ in range(4)]
    for thread in threads:
        thread.start()
    total, launching = 0, True
    while launching:
        launching = any(thread.is_alive() for thread in threads)
        total += collected(core).measured
    assert total == 400_000 and core.buffers_out == 0, (total, core.buffers_out)


def check_a_forked_child_touches_nothing() -> None:
    core = attached()
    launch("parent")
    before = calls_made()
    child = os.fork()
    if child == 0:
        ok = all("forked" in why for why in (core.attach(), core.flush(False), core.pause(), core.detach()))
        ok = ok and core.take().kernels == {} and calls_made() == before
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert collected(core).measured == 1


def check_errors_are_told_by_name() -> None:
    core = attached()
    for call, fails, why in (
        (
            Call.REGISTER,
            core.attach,
            "cuptiActivityRegisterCallbacks failed: CUPTI_ERROR_NOT_INITIALIZED (15)",
        ),
        (Call.CLOCK, core.attach, "cuptiActivityRegisterTimestampCallback failed: CUPTI_ERROR_UNKNOWN (999)"),
        (
            Call.ENABLE,
            core.attach,
            "cuptiActivityEnable failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)",
        ),
        (Call.DISABLE, core.pause, "cuptiActivityDisable failed: CUPTI_ERROR_UNKNOWN (999)"),
        (Call.FLUSH, lambda: core.flush(False), "cuptiActivityFlushAll failed: CUPTI_ERROR_UNKNOWN (999)"),
    ):
        error = int(why.rpartition("(")[2].rstrip(")"))
        gpu.fake_fail(call, error, 1)
        told = fails()
        assert told == why, told
        assert core.attach() == ""


def check_another_tool_takes_the_callbacks_and_gives_them_back() -> None:
    core = attached()
    launch("ours")
    gpu.fake_other_tool()
    launch("theirs")  # in the buffer that is ours: the other tool is given it, and does not know it
    assert core.flush(forced=False) == ""
    launch("theirs")  # in theirs
    assert gpu.fake_other_tool_records() == 2 and core.take().measured == 0
    assert core.attach() == ""
    launch("ours again")  # still in theirs
    taken = collected(core)
    assert (taken.measured, taken.foreign) == (0, 1), taken
    launch("ours at last")
    assert [kernel.name for kernel in kernels(collected(core))] == ["ours at last"]
    assert core.buffers_out == 1  # the one that was lost


def check_times_are_nanoseconds_again_after_the_clock_of_another_tool() -> None:
    """torch.profiler has CUPTI count cycles, and does not take that back."""
    core = attached()
    gpu.fake_other_tool()
    launch("theirs", 1000)
    assert core.flush(forced=True) == "" and core.attach() == ""
    launch("ours", 1000)
    (ours,) = kernels(collected(core))
    assert ours.summary[Statistic.AVG] == 1.0, ours  # microseconds


def check_no_clock_can_be_set_and_nobody_has_set_another() -> None:
    core = attached()
    gpu.fake_set_now(ctypes.c_uint64(time.time_ns()))
    gpu.fake_fail(Call.CLOCK, 39, 1)
    assert core.attach() == ""
    launch("ours", 1000, start=time.time_ns() + 1000)
    assert collected(core).measured == 1


def check_cupti_leaves_with_the_end_of_a_cuda_call() -> None:
    core = attached()
    for window in range(1, 4):
        launch("gemm")
        assert core.pause() == "" and core.flush(forced=True) == "" and core.detach() == ""
        assert core.detach() == "" and gpu.fake_attached() == 1 and core.times_left == window - 1
        gpu.fake_cuda_call()
        assert gpu.fake_attached() == 0 and core.times_left == window == gpu.fake_calls(Call.FINALIZE)
        gpu.fake_cuda_call()
        assert gpu.fake_calls(Call.FINALIZE) == window
        assert core.take().measured == 1 and core.attach() == ""
    # Asked to leave, and wanted again before any call of CUDA:
    assert core.detach() == "" and core.attach() == ""
    gpu.fake_cuda_call()
    launch("gemm")
    assert collected(core).measured == 1 and core.times_left == 3


def check_buffers_that_were_lost_are_freed_when_cupti_left_twice() -> None:
    core = attached()
    for window in range(1, 4):
        launch("never ends", end=0)
        assert core.pause() == "" and core.detach() == ""  # without collecting by force
        gpu.fake_cuda_call()
        assert core.times_left == window and core.buffers_out <= 2, core.buffers_out
        assert core.attach() == ""


def check_cupti_stays_where_another_tool_has_subscribed() -> None:
    core = attached()
    gpu.fake_other_subscriber(1)
    assert core.detach() == "cuptiSubscribe failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
    gpu.fake_cuda_call()
    assert gpu.fake_calls(Call.FINALIZE) == 0
    gpu.fake_other_subscriber(0)
    gpu.fake_fail(Call.DOMAIN, 999, 1)
    assert core.detach() == "cuptiEnableDomain failed: CUPTI_ERROR_UNKNOWN (999)"
    assert gpu.fake_calls(Call.UNSUBSCRIBE) == 1
    gpu.fake_cuda_call()
    assert gpu.fake_calls(Call.FINALIZE) == 0


def call_of_another_thread() -> None:
    thread = threading.Thread(target=gpu.fake_cuda_call)
    thread.start()
    thread.join()


def check_cupti_does_not_leave_while_it_is_still_asked_to() -> None:
    """Another thread calls CUDA after the first of the two domains: finalised then, CUPTI would be called with a
    subscriber that is gone, and the fake ends the process."""
    core = attached()

    @ctypes.CFUNCTYPE(None)
    def calls() -> None:
        call_of_another_thread()

    @ctypes.CFUNCTYPE(None)
    def calls_and_then_no_more_works() -> None:
        call_of_another_thread()
        gpu.fake_fail(Call.DOMAIN, 999, 1)

    gpu.fake_after(Call.DOMAIN, calls)
    assert core.detach() == "" and gpu.fake_calls(Call.FINALIZE) == 0 and gpu.fake_calls(Call.DOMAIN) == 2
    call_of_another_thread()
    assert gpu.fake_attached() == 0 and core.times_left == gpu.fake_calls(Call.FINALIZE) == 1
    assert core.attach() == ""
    gpu.fake_after(Call.DOMAIN, calls_and_then_no_more_works)
    assert core.detach() == "cuptiEnableDomain failed: CUPTI_ERROR_UNKNOWN (999)"
    call_of_another_thread()
    assert (gpu.fake_calls(Call.FINALIZE), gpu.fake_calls(Call.UNSUBSCRIBE), gpu.fake_subscribed()) == (
        1,
        1,
        0,
    )
    launch("gemm")
    assert collected(core).measured == 1
    assert core.detach() == ""
    call_of_another_thread()
    assert gpu.fake_attached() == 0 and core.times_left == 2


def would_not_leave(call: str) -> None:
    """Subscribed forever, each call of CUDA would run the callback, and no profiler could subscribe."""
    core = attached()
    gpu.fake_fail(Call.FINALIZE, 999, 1)
    assert core.detach() == ""
    call_of_another_thread()
    assert gpu.fake_subscribed() == 1, "not from the callback: CUPTI is on its stack"
    told = getattr(core, call)()
    assert (gpu.fake_calls(Call.UNSUBSCRIBE), gpu.fake_subscribed()) == (1, 0)
    for _ in range(2):
        assert core.attach() == ""
        launch("gemm")
        assert collected(core).measured == 1
        why = core.detach()
        assert why == "cuptiFinalize failed: CUPTI_ERROR_UNKNOWN (999)", why
        assert told in ("", why), told
        call_of_another_thread()
        assert (gpu.fake_calls(Call.FINALIZE), gpu.fake_subscribed(), core.times_left) == (1, 0, 0)


def check_cupti_that_would_not_leave_is_left_alone_when_it_is_attached() -> None:
    would_not_leave("attach")


def check_cupti_that_would_not_leave_is_left_alone_when_it_is_detached() -> None:
    would_not_leave("detach")


def check_a_subscription_that_would_not_end_is_ended_later() -> None:
    core = attached()
    gpu.fake_fail(Call.UNSUBSCRIBE, 999, 3)
    assert core.detach() == ""
    for _ in range(2):  # it was wanted again before it left
        assert core.attach() == "cuptiUnsubscribe failed: CUPTI_ERROR_UNKNOWN (999)"
        call_of_another_thread()
        assert (gpu.fake_calls(Call.FINALIZE), gpu.fake_subscribed()) == (0, 1)
    assert core.detach() == "cuptiUnsubscribe failed: CUPTI_ERROR_UNKNOWN (999)"
    assert core.attach() == "" and gpu.fake_subscribed() == 0
    assert core.detach() == ""
    call_of_another_thread()
    assert gpu.fake_attached() == 0 and core.times_left == 1


def check_an_old_cupti_stays() -> None:
    os.environ["FAKE_CUPTI_VERSION"] = "22"
    assert attached().detach() == "CUPTI before CUDA 12.5 (its version is 22) may crash when it leaves"


def check_cupti_is_not_called_where_the_driver_does_not_work() -> None:
    """The fake ends the process if it is."""
    core = load_core()
    assert core.open(os.environ["FAKE_CUPTI"], False) == ""
    for variable, value, why in (
        ("FAKE_CUDA_INIT", "100", "cuInit failed with error 100"),
        ("FAKE_CUDA_DEVICES", "0", "the CUDA driver sees no device"),
    ):
        os.environ[variable] = value
        for told in (core.attach(), core.pause(), core.flush(True), core.detach()):
            assert told == why, told
        assert core.take().measured == 0
        del os.environ[variable]


if __name__ == "__main__":
    run_checks(globals())
