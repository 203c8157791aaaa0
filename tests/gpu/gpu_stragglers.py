"""Durations of kernels against torch.profiler, lost records, the cost of a step, and a slow rank on a GPU.

`_Gpu` runs on a GPU only; a dry run uses `_Dry`, which launches kernels of a fake libcupti.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .gpu_check import Check, Row, by_mode, is_dry, row
from .gpu_job import Job

TIMES = "mean duration of each kernel within 2 % of torch.profiler"
RECORDS = "100,000 kernels: no record lost, none with another name"
PAUSED = "kernels of a section with profile_cuda=False are left out of the section around it, all others are recorded"
ATTACH = "20 times attached and detached while kernels and a CUDA graph run: results right, kernels timed each time"
PROFILER = "beside an active torch.profiler: its trace is complete; kernels are timed again after it"
COST = {
    10: "cost of a 10 ms step with 300 kernels, with a report each minute: at most 0.3 %",
    100: "cost of a 100 ms step with 300 kernels, with a report each minute: at most 0.3 %",
}
NAMED = "2 ranks on one GPU, one with kernels that take twice as long: it is reported"
DIFFERENCE, GOAL = 0.02, 0.003
KERNELS = 300
SECTIONS = 20  # that are profiled in each window
PROFILED = 20  # times
REPORT_INTERVAL = 60.0  # seconds, the default of the detector
Workload = Callable[[], object]


def kernels(folder: Path) -> Iterator[Row]:
    """With the CUPTI source itself, in this process."""
    gpu: Any = by_mode(_Gpu, _Dry)()
    gpu.warm_up()
    source = _open_source()
    window = _Window(source)
    yield _attach(gpu, window)
    yield _count_records(gpu, window)
    yield _leave_out(gpu, source, window)
    source.close()


def profiler(folder: Path) -> Iterator[Row]:
    """In a process of its own: torch.profiler subscribes to CUPTI for good, which then cannot leave."""
    gpu: Any = by_mode(_Gpu, _Dry)()
    gpu.warm_up()
    before = gpu.profile()  # before CUPTI is attached: a first profiler while it leaves stays blind
    source = _open_source()
    window = _Window(source)
    yield _compare_times(gpu, window, before)
    yield _beside_profiler(gpu, source, window)
    source.close()


def _open_source() -> Any:
    from holdfast.straggler.kernels.cupti import open_cupti

    logging.basicConfig(level=logging.INFO)
    source = open_cupti(SECTIONS)
    if isinstance(source, str):
        raise RuntimeError(source)
    return source


class _Window:
    """Measures the work of one window of sections; the source attaches with the first and detaches after the last."""

    def __init__(self, source: Any) -> None:
        from holdfast.straggler.kernels.cupti import SECTIONS_TO_DRAIN

        self._source = source
        self.sections = SECTIONS
        self._more = SECTIONS_TO_DRAIN + 1
        self.attaching = 0.0  # seconds

    def measure(self, work: Workload) -> Any:
        for number in range(self.sections + self._more):
            began = time.perf_counter()
            self._source.start("section")
            if number == 0:
                self.attaching = time.perf_counter() - began
            if number < self.sections:
                work()
            self._source.stop()
        return self._source.take()


def _compare_times(gpu: Any, window: _Window, before: dict[str, float]) -> Row:
    """Means, which the source has exactly, between two runs of the profiler."""
    found = window.measure(gpu.launch_several)
    measured, after = found.compute, gpu.profile()
    print("torch.profiler, means before and after in us:", before, after)
    print("holdfast:", measured, found.records, found.dropped, found.note, sep="\n")
    theirs = {name: (before[name] + after[name]) / 2 for name in before if name in after}
    ours: dict[str, float] = {}
    for name, summary in measured.items():
        ours[_short(name.rpartition("<grid")[0])] = _value(summary, "AVG")
    missing = sorted(set(before) ^ set(ours))
    differences = {name: abs(ours[name] / theirs[name] - 1) for name in theirs if name in ours}
    furthest = max(differences, key=differences.__getitem__, default="none")
    passed = not missing and bool(differences) and differences[furthest] <= DIFFERENCE
    reason = f"only on one side: {missing}" if missing else f"largest difference: {furthest}"
    drift = max((abs(after[name] / before[name] - 1) for name in theirs), default=0.0)
    figures = {
        "kernels": len(differences),
        "largest_difference_percent": 100 * differences.get(furthest, 1.0),
        "profiler_to_itself_percent": 100 * drift,
    }
    return row(TIMES, passed, reason, **figures)


def _short(name: str) -> str:
    """Long names are cut, and the two demanglers place spaces differently."""
    return "".join(name.split())[:80]


def _value(summary: Mapping[Any, float], name: str) -> float:
    return next(value for key, value in summary.items() if key.name == name)


def _count_records(gpu: Any, window: _Window) -> Row:
    count = by_mode(100_000, 1000)
    found = window.measure(lambda: gpu.launch_two_kinds(count // window.sections // 2))
    counts = [int(_value(summary, "NUM")) for summary in found.compute.values()]
    passed = found.records == count and found.dropped == 0 and counts == [count // 2, count // 2]
    reason = f"{found.records} of {count}, {found.dropped} dropped, counts by name {counts}; {found.note}"
    return row(RECORDS, passed, reason, records=found.records, dropped=found.dropped)


def _leave_out(gpu: Any, source: Any, window: _Window) -> Row:
    """None of them runs where recording is switched on again: each launch waits."""

    def work() -> None:
        gpu.launch_two_kinds(10)
        source.pause()
        gpu.launch_two_kinds(30)
        source.resume()

    found, expected = window.measure(work), 20 * window.sections
    reason = f"{found.records} of {expected}, {found.dropped} dropped; {found.note}"
    return row(PAUSED, (found.records, found.dropped) == (expected, 0), reason, records=found.records)


def _attach(gpu: Any, window: _Window) -> Row:
    from holdfast.straggler.kernels.cupti import load_core

    core: Any = load_core()
    times_left = core._library.holdfast_kernels_times_left  # how often CUPTI left the process
    right, records, seconds, before = [], [], [], times_left()
    for _ in range(by_mode(20, 3)):
        pending = gpu.start_long_work()
        records.append(window.measure(lambda: gpu.launch_two_kinds(1)).records)
        seconds.append(window.attaching)
        right.append(gpu.is_right(pending))
    left = times_left() - before
    reason = f"{right.count(False)} wrong results; detached {left} times; records of each window: {records}"
    figures = {"detached": left, "attaching_ms": 1000 * statistics.median(seconds)}
    return row(ATTACH, all(right) and all(records) and left >= len(right) - 1, reason, **figures)


def _beside_profiler(gpu: Any, source: Any, window: _Window) -> Row:
    import torch

    with torch.profiler.profile() as profiler:
        source.start("beside")
        gpu.launch_two_kinds(50)
        source.stop()
        gpu.finish()
    beside = source.take()
    traced = gpu.count_kernels(profiler)
    after = window.measure(gpu.launch_several)
    passed = traced == 100 and beside.records == 0 and after.records > 0
    reason = f"traced {traced} of 100; Holdfast measured {beside.records} beside and {after.records} after it"
    return row(PROFILER, passed, f"{reason}; {after.note}", traced=traced, note=beside.note)


class _Gpu:
    """Kernels of torch. Each has one launch shape."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.big = torch.rand(4096, 4096, device="cuda")
        self.small = torch.zeros(1024, device="cuda")
        self.count = torch.zeros(1, device="cuda")
        self.graph, self.replays = torch.cuda.CUDAGraph(), 0
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.count.add_(1)

    def warm_up(self) -> None:
        """Two seconds: the clocks of an idle GPU rise at first."""
        until = time.monotonic() + 2
        while time.monotonic() < until:
            self.launch_several()

    def finish(self) -> None:
        self.torch.cuda.synchronize()

    def launch_several(self) -> None:
        for _ in range(3):
            product = self.big @ self.big
            self.torch.softmax(product, dim=1)
            product.add_(1)
            product.sqrt_()
        self.finish()

    def launch_two_kinds(self, each: int) -> None:
        for _ in range(each):
            self.small.add_(1)
            self.small.neg_()
        self.finish()

    def start_long_work(self) -> Any:
        """About 50 ms and a graph, which run while the source attaches."""
        self.torch.cuda._sleep(50_000_000)
        self.graph.replay()
        self.replays += 1
        return self.big.sum(), self.big.sum()

    def is_right(self, result: Any) -> bool:
        return bool(self.torch.equal(*result)) and self.count.item() == self.replays

    def profile(self) -> dict[str, float]:
        """Mean microseconds of each kernel, by torch.profiler."""
        with self.torch.profiler.profile() as profiler:
            for _ in range(PROFILED):
                self.launch_several()
        times: dict[str, list[float]] = {}
        for event in self._kernels(profiler):
            times.setdefault(_short(event.name), []).append(event.time_range.elapsed_us())
        print({name: (min(found), max(found), len(found)) for name, found in times.items()})
        return {name: statistics.mean(found) for name, found in times.items()}

    def count_kernels(self, profiler: Any) -> int:
        return len(self._kernels(profiler))

    def _kernels(self, profiler: Any) -> list[Any]:
        events = [event for event in profiler.events() if "CUDA" in str(event.device_type)]
        return [event for event in events if not event.name.startswith(("Memcpy", "Memset"))]

    def make_step(self, milliseconds: float) -> Workload:
        """A step of `KERNELS` kernels that take so long together."""
        cycles = int(milliseconds / 1000 / KERNELS * self._clock())

        def step() -> None:
            for _ in range(KERNELS):
                self.torch.cuda._sleep(cycles)
            self.finish()

        return step

    def _clock(self) -> float:
        """Cycles per second, at the clock that the GPU reaches under this load."""
        self.torch.cuda._sleep(200_000_000)
        self.finish()
        began = time.perf_counter()
        self.torch.cuda._sleep(500_000_000)
        self.finish()
        return 500_000_000 / (time.perf_counter() - began)


class _Dry:
    """The same interface with the fake libcupti of tests/straggler/kernels and a profiler on the CPU."""

    def __init__(self) -> None:
        import torch

        from tests.straggler.kernels import fake

        fake.make_torch_use_cuda()
        self.fake = fake
        self.numbers = torch.zeros(8)

    def warm_up(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def launch_several(self) -> None:
        self.fake.launch("gemm", 2_000_000)
        self.fake.launch("softmax", 150_000)

    def launch_two_kinds(self, each: int) -> None:
        for _ in range(each):
            self.fake.launch("add", 1000)
            self.fake.launch("neg", 1100)
            self.numbers.add_(1).neg_()

    def start_long_work(self) -> None:
        pass

    def is_right(self, result: None) -> bool:
        self.fake.gpu.fake_cuda_call()  # CUPTI detaches at the end of a call
        return True

    def profile(self) -> dict[str, float]:
        return {"gemm": 2000.0, "softmax": 150.0}

    def count_kernels(self, profiler: Any) -> int:
        return sum(event.name in ("aten::add_", "aten::neg_") for event in profiler.events())

    def make_step(self, milliseconds: float) -> Workload:
        return lambda: self.fake.launch("spin", int(milliseconds * 1e6))


def cost(folder: Path) -> Iterator[Row]:
    """Steps in a detector's section against steps without, alternately.

    With `max_profiled_sections`: the cost is the share of the steps that are not profiled, and what a profiled window
    costs once per report. `percent_profiled` is the cost without that limit, where each step is profiled.
    """
    from holdfast.straggler import Detector
    from holdfast.straggler.kernels.cupti import SECTIONS_TO_DRAIN

    gpu: Any = by_mode(_Gpu, _Dry)()
    gpu.finish()
    Detector.initialize(scores_to_compute="all", gather_on_rank0=False, max_profiled_sections=SECTIONS)
    window = SECTIONS + SECTIONS_TO_DRAIN + 1
    for milliseconds, name in COST.items():
        step = gpu.make_step(milliseconds)
        steps, pairs = by_mode((100, 6) if milliseconds < 100 else (40, 3), (4, 2))
        outside, once = [], []
        for pair in range(pairs + 1):
            plain = _time(step, steps, None) / steps
            measured = _time(step, window, Detector) - window * plain
            others = _time(step, steps, Detector) / steps / plain - 1
            report: Any = Detector.generate_report()
            if pair:  # the source was attached already when the first began
                outside.append(others)
                once.append(measured)
        share = statistics.median(outside) + max(0.0, statistics.median(once)) / REPORT_INTERVAL
        yield row(
            name,
            share <= GOAL or is_dry(),
            f"more than {100 * GOAL:g} %",
            percent=100 * share,
            percent_profiled=100 * statistics.median(once) / (window * plain),
            percent_outside_window=100 * statistics.median(outside),
            spread_percent=100 * (max(outside) - min(outside)),
            window_ms=1000 * statistics.median(once),
            source=report.kernel_source,
            records=report.kernel_records,
        )
    Detector.shutdown()


def _time(step: Workload, count: int, detector: Any) -> float:
    """Seconds of so many steps."""
    began = time.perf_counter()
    for _ in range(count):
        if detector is None:
            step()
        else:
            with detector.detection_section("step"):
                step()
    return time.perf_counter() - began


def named(folder: Path) -> Iterator[Row]:
    """By the relative score of its GPU; under torchrun, as the detector needs no launcher of ours."""
    with Job(folder, "straggling", "gpu_straggling.py", ranks=2, launcher="torchrun") as job:
        marks = list(job.read("report"))
        job.wait()
    if not marks:
        raise RuntimeError(f"no report: {job.errors()}")
    report = marks[-1]
    reason = f"reported: {report['stragglers']}, source {report['source']}: {report['reason']}"
    figures = {"source": report["source"], "scores": str(report["scores"])}
    yield row(NAMED, report["stragglers"] == [1], reason, **figures)


CHECKS = [
    Check("kernels", 40, (ATTACH, RECORDS, PAUSED), kernels),
    Check("profiler", 40, (TIMES, PROFILER), profiler),
    Check("kernel-cost", 80, tuple(COST.values()), cost),
    Check("straggler", 40, (NAMED,), named),
]
