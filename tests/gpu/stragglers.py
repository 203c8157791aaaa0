"""Times of kernels against torch.profiler, lost records, the cost of a step, and a slow rank on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .check import Check, Place, Row, row
from .job import Job

TIMES = "durations of kernels are those of torch.profiler within 2 %"
RECORDS = "100,000 records: none lost, none with another name"
ATTACH = "attach and detach while kernels and a CUDA graph run: results are right, kernels are timed again"
PROFILER = "beside an active torch.profiler: its trace is whole, then kernels are timed again"
COST = {10: "cost of a 10 ms step with 300 kernels", 100: "cost of a 100 ms step with 300 kernels"}
NAMED = "2 ranks on one GPU, one with twice the work: named"
SHARE, GOAL = 0.02, 0.003
KERNELS = 300
SECTIONS = 20  # outermost ones that a window measures
Workload = Callable[[], object]


def kernels(place: Place) -> Iterator[Row]:
    """Each with the source itself, in this process."""
    import torch

    gpu: Any = _Dry() if place.dry else _Gpu()
    source = gpu.source()
    work = gpu.several_kernels
    work()
    profiled = gpu.profiled(work)
    ours = _measured(source, work)
    apart = {name: abs(ours[name] / profiled[name] - 1) for name in profiled if name in ours}
    missing = sorted(set(profiled) ^ set(ours))
    yield row(
        TIMES,
        not missing and bool(apart) and max(apart.values()) <= SHARE,
        f"missing on one side: {missing}"
        if missing
        else f"furthest: {max(apart, key=apart.__getitem__, default='')}",
        kernels=len(apart),
        furthest_percent=100 * max(apart.values(), default=1.0),
    )

    count = place.pick(100_000, 1000)
    for _ in range(SECTIONS):
        source.start("records")
        gpu.two_kernels(count // SECTIONS // 2)
        source.stop()
    gpu.finish()
    window = source.take()
    counted = [int(_of(summary, "NUM")) for summary in window.compute.values()]
    yield row(
        RECORDS,
        window.records == count and window.dropped == 0 and counted == [count // 2, count // 2],
        f"{window.records} of {count}, {window.dropped} dropped, {len(counted)} names; {window.note}",
        records=window.records,
        dropped=window.dropped,
    )

    right, coming = [], []
    for _ in range(place.pick(20, 3)):
        result = gpu.long_kernels()
        for number in range(SECTIONS + 2):
            began = time.perf_counter()
            source.start("attach")
            if number == 0:
                coming.append(time.perf_counter() - began)
            gpu.two_kernels(1)
            source.stop()
        right.append(gpu.is_right(result))
        again = source.take()
    yield row(
        ATTACH,
        all(right) and again.records > 0,
        f"{right.count(False)} wrong results; {again.note}",
        times=len(right),
        coming_back_ms=1000 * statistics.median(coming),
    )

    with torch.profiler.profile() as profiler:
        source.start("beside")
        gpu.two_kernels(50)
        source.stop()
        gpu.finish()
    beside = source.take()
    seen = gpu.kernels_in(profiler)
    after = _measured(source, work)
    yield row(
        PROFILER,
        seen == 100 and beside.records == 0 and bool(after),
        f"the trace has {seen} of 100 kernels, Holdfast measured {beside.records} beside it and {len(after)} after it",
        note=beside.note,
    )
    source.close()


def _measured(source: Any, work: Workload) -> dict[str, float]:
    """Medians in microseconds by name, over one window."""
    for _ in range(SECTIONS):
        source.start("kernels")
        work()
        source.stop()
    window = source.take()
    return {_short(name.rpartition("<grid")[0]): _of(found, "MED") for name, found in window.compute.items()}


def _short(name: str) -> str:
    """Long names are cut, and demangled in two ways."""
    return "".join(name.split())[:80]


def _of(summary: Mapping[Any, float], name: str) -> float:
    return next(value for key, value in summary.items() if key.name == name)


class _Gpu:
    """Work for the GPU; kernels have one launch shape each."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.big = torch.rand(4096, 4096, device="cuda")
        self.small = torch.zeros(1024, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.counted = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.counted.add_(1)
        self.replays = 0

    def source(self) -> Any:
        from holdfast.straggler.kernels.cupti import open_cupti

        self.finish()
        source = open_cupti()
        if isinstance(source, str):
            raise RuntimeError(source)
        return source

    def finish(self) -> None:
        self.torch.cuda.synchronize()

    def several_kernels(self) -> None:
        for _ in range(3):
            product = self.big @ self.big
            product = self.torch.softmax(product, dim=1)
            product.add_(1).sqrt_().cumsum_(1)
        self.finish()

    def two_kernels(self, each: int) -> None:
        for _ in range(each):
            self.small.add_(1)
            self.small.neg_()

    def long_kernels(self) -> Any:
        """About 50 ms and a graph, not waited for."""
        self.torch.cuda._sleep(50_000_000)
        self.graph.replay()
        self.replays += 1
        return self.big.sum(), self.big.sum()

    def is_right(self, result: Any) -> bool:
        return bool(self.torch.equal(*result)) and self.counted.item() == self.replays

    def profiled(self, work: Workload) -> dict[str, float]:
        with self.torch.profiler.profile() as profiler:
            for _ in range(SECTIONS):
                work()
        times: dict[str, list[float]] = {}
        for event in self._kernels(profiler):
            times.setdefault(_short(event.name), []).append(event.time_range.elapsed_us())
        return {name: statistics.median(found) for name, found in times.items()}

    def kernels_in(self, profiler: Any) -> int:
        return len(self._kernels(profiler))

    def _kernels(self, profiler: Any) -> list[Any]:
        return [
            event
            for event in profiler.events()
            if "CUDA" in str(event.device_type) and not event.name.startswith(("Memcpy", "Memset"))
        ]

    def step(self, milliseconds: float) -> Workload:
        """`KERNELS` kernels that take so long together."""
        cycles = int(milliseconds / 1000 / KERNELS * self._clock())

        def step() -> None:
            for _ in range(KERNELS):
                self.torch.cuda._sleep(cycles)
            self.finish()

        return step

    def _clock(self) -> float:
        """Cycles of `_sleep` for each second."""
        self.finish()
        began = time.perf_counter()
        self.torch.cuda._sleep(500_000_000)
        self.finish()
        return 500_000_000 / (time.perf_counter() - began)


class _Dry:
    """The same through the fake libcupti of tests/straggler/kernels; a profiler on the CPU."""

    def __init__(self) -> None:
        import torch

        from tests.straggler.kernels import fake

        # What the source asks of torch.
        torch.cuda.is_initialized = lambda: True
        torch.cuda.is_current_stream_capturing = lambda: False
        self.fake = fake
        self.numbers = torch.zeros(8)

    def source(self) -> Any:
        return self.fake.source()

    def finish(self) -> None:
        pass

    def several_kernels(self) -> None:
        self.fake.launch("gemm", 2_000_000)
        self.fake.launch("softmax", 150_000)

    def two_kernels(self, each: int) -> None:
        for _ in range(each):
            self.fake.launch("add", 1000)
            self.fake.launch("neg", 1100)
            self.numbers.add_(1).neg_()

    def long_kernels(self) -> Any:
        return self.numbers

    def is_right(self, result: Any) -> bool:
        return True

    def profiled(self, work: Workload) -> dict[str, float]:
        return {"gemm": 2000.0, "softmax": 150.0}

    def kernels_in(self, profiler: Any) -> int:
        return sum(event.name in ("aten::add_", "aten::neg_") for event in profiler.events())

    def step(self, milliseconds: float) -> Workload:
        return lambda: self.fake.launch("spin", int(milliseconds * 1e6))


def cost(place: Place) -> Iterator[Row]:
    """A detector's section around each step against none, by turns; the report is made once a block, as in training."""
    from holdfast.straggler import Detector

    gpu: Any = _Dry() if place.dry else _Gpu()
    Detector.initialize(scores_to_compute="all", gather_on_rank0=False)
    for milliseconds, name in COST.items():
        step = gpu.step(milliseconds)
        steps, pairs = (
            place.pick(100 if milliseconds < 100 else 40, 3),
            place.pick(6 if milliseconds < 100 else 3, 2),
        )
        _seconds(step, 5, None)
        ratios, measured, last = [], [], None
        for _ in range(pairs):
            without = _seconds(step, steps, None)
            window = min(SECTIONS, steps // 2)
            first = _seconds(step, window, Detector)
            ratios.append((first + _seconds(step, steps - window, Detector)) / without - 1)
            measured.append(first / window * steps / without - 1)
            last = Detector.generate_report()
        share = statistics.median(ratios)
        yield row(
            name,
            share <= GOAL,
            f"more than {100 * GOAL:g} %",
            percent=100 * share,
            spread_percent=100 * (max(ratios) - min(ratios)),
            while_measured_percent=100 * statistics.median(measured),
            source=getattr(last, "kernel_source", "none"),
            records=getattr(last, "kernel_records", 0),
        )
    Detector.shutdown()


def _seconds(step: Workload, count: int, detector: Any) -> float:
    began = time.perf_counter()
    for _ in range(count):
        if detector is None:
            step()
        else:
            with detector.detection_section("step"):
                step()
    return time.perf_counter() - began


def named(place: Place) -> Iterator[Row]:
    """By the score of its GPU."""
    with Job(place, "straggling", "straggling.py", ranks=2) as job:
        marks = list(job.marks("report"))
        job.end()
    if not marks:
        raise RuntimeError(f"no report: {job.said()[-300:]}")
    report = marks[-1]
    yield row(
        NAMED,
        report["stragglers"] == [1],
        f"named: {report['stragglers']}; source {report['source']}: {report['reason']}",
        source=report["source"],
        scores=str(report["scores"]),
    )


CHECKS = [
    Check("kernels", "Stragglers", 60, (TIMES, RECORDS, ATTACH, PROFILER), kernels),
    Check("cost", "Stragglers", 80, tuple(COST.values()), cost),
    Check("named", "Stragglers", 40, (NAMED,), named),
]
