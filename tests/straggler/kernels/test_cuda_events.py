"""GPU times of sections by CUDA events: with a stand-in of torch's events, whose times the test sets, and with CUDA."""

from __future__ import annotations

import math
import sys
import threading
from types import SimpleNamespace

import pytest

from holdfast.straggler.kernels.cuda_events import MOST_PAIRS, CudaEventSource, TorchCuda
from holdfast.straggler.kernels.source import Capture, KernelWindow
from holdfast.straggler.scores import Statistic
from tests.straggler.doubles import Gpu


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def source(gpu: Gpu) -> CudaEventSource:
    return CudaEventSource("no cupti", cuda=gpu)


def test_a_section_has_its_time_in_microseconds(gpu: Gpu, source: CudaEventSource) -> None:
    for milliseconds in (3.0, 1.0, 2.0):
        gpu.works(source, "fwd", milliseconds)
    gpu.works(source, "bwd", 7.0)
    window = source.take()
    assert window.compute.keys() == {"fwd", "bwd"}
    assert window.compute["fwd"][Statistic.MED] == pytest.approx(2000)
    assert window.compute["fwd"][Statistic.NUM] == 3
    assert window.compute["bwd"][Statistic.MAX] == pytest.approx(7000)
    assert (window.records, window.dropped, window.note, window.collectives) == (4, 0, "", {})
    assert source.take() == KernelWindow(by_section=True)
    assert (source.name, source.reason) == ("cuda_events", "no cupti")


def test_what_is_not_to_be_profiled_is_left_out_of_the_time_around_it(
    gpu: Gpu, source: CudaEventSource
) -> None:
    source.start("step")
    for _ in range(2):
        gpu.now += 1.0
        source.pause()
        gpu.now += 10.0
        source.resume()
    gpu.now, gpu.done = gpu.now + 1.0, gpu.now
    source.stop()
    assert source.take().compute == {}
    gpu.done = math.inf
    (step,) = source.take().compute.values()
    assert (step[Statistic.NUM], step[Statistic.MAX]) == (1, 3000.0)
    gpu.works(source, "step", 2.0)
    assert gpu.events == 6  # three pairs, which are used again
    source.start("step")
    gpu.capturing = True
    source.pause()
    gpu.capturing = False
    source.resume()
    source.stop()
    taken = source.take()
    assert (taken.records, taken.dropped) == (1, 1)


def test_what_the_gpu_has_not_finished_is_in_a_later_window(gpu: Gpu, source: CudaEventSource) -> None:
    gpu.done = 1.5
    gpu.works(source, "fwd", 1.0)
    gpu.works(source, "fwd", 1.0)
    assert source.take().records == 1
    gpu.works(source, "fwd", 4.0)
    gpu.done = math.inf
    window = source.take()
    assert window.records == 2
    assert window.compute["fwd"][Statistic.MAX] == pytest.approx(4000)


def test_max_sections_limits_the_runs_of_each_window(gpu: Gpu) -> None:
    source = CudaEventSource(max_sections=3, cuda=gpu)
    for _ in range(2):
        for number in range(10):
            gpu.works(source, f"section {number % 2}", 1.0)
        window = source.take()
        assert (window.records, window.dropped) == (3, 0)


def test_a_gpu_that_never_finishes_costs_a_bounded_number_of_events(
    gpu: Gpu, source: CudaEventSource
) -> None:
    gpu.done = -1.0
    entries = 2 * MOST_PAIRS
    dropped = 0
    for number in range(entries):
        gpu.works(source, f"section {number % 100}", 1.0)
        if number % 500 == 499:
            dropped += source.take().dropped
    assert gpu.events == 2 * MOST_PAIRS
    assert dropped + source.take().dropped == entries - MOST_PAIRS
    gpu.done = math.inf
    assert source.take().records == MOST_PAIRS


def test_nothing_is_asked_of_cuda_before_the_training_initialised_it(
    gpu: Gpu, source: CudaEventSource
) -> None:
    gpu.initialised = False
    gpu.works(source, "fwd", 1.0)
    assert source.take() == KernelWindow(by_section=True)
    assert (gpu.events, gpu.asked) == (0, 0)
    gpu.initialised = True
    gpu.works(source, "fwd", 1.0)
    assert source.take().records == 1


def test_a_capture_is_left_alone(gpu: Gpu, source: CudaEventSource) -> None:
    gpu.works(source, "fwd", 1.0)
    gpu.capturing = True
    gpu.works(source, "fwd", 1.0)
    assert source.take().records == 0  # asking now would end the capture
    gpu.capturing = False
    window = source.take()
    assert (window.records, window.dropped) == (1, 0)


def test_a_section_that_ends_in_a_capture_is_dropped(gpu: Gpu, source: CudaEventSource) -> None:
    source.start("fwd")
    gpu.capturing = True
    source.stop()
    gpu.capturing = False
    window = source.take()
    assert (window.records, window.dropped) == (0, 1)
    gpu.works(source, "fwd", 1.0)
    assert source.take().records == 1
    assert gpu.events == 2


def test_each_gpu_has_its_own_events(gpu: Gpu, source: CudaEventSource) -> None:
    for device in (0, 1, 0, 1):
        gpu.device_index = device
        gpu.works(source, "fwd", 1.0)
        assert source.take().records == 1
    assert gpu.events == 4


@pytest.mark.parametrize("when", ["start", "stop", "take"])
def test_an_error_of_cuda_ends_it_with_a_note(gpu: Gpu, source: CudaEventSource, when: str) -> None:
    gpu.works(source, "fwd", 1.0)
    gpu.error = "CUDA error: an illegal memory access was encountered" if when == "start" else ""
    source.start("fwd")
    gpu.error = gpu.error or ("CUDA error: unspecified launch failure" if when == "stop" else "")
    source.stop()
    gpu.error = gpu.error or ("CUDA error: device-side assert triggered" if when == "take" else "")
    window = source.take()
    assert window.records == 0
    assert window.note == f"timing by CUDA events ended after an error: RuntimeError: {gpu.error}"
    gpu.error = ""
    gpu.works(source, "fwd", 1.0)
    assert source.take() == window
    source.close()


def test_windows_taken_while_sections_run(gpu: Gpu, source: CudaEventSource) -> None:
    """An entry is in one window at most, and whole; those within a taking are left out."""
    stop, capture = threading.Event(), Capture(source)
    windows: list[KernelWindow] = []

    def taking() -> None:
        while not stop.wait(0.001):
            windows.append(capture.take())

    thread = threading.Thread(target=taking)
    thread.start()
    try:
        for _ in range(5000):
            key = capture.enter("fwd")
            gpu.now += 1.0
            capture.leave(key)
    finally:
        stop.set()
        thread.join()
    windows.append(capture.take())
    assert all(window.note == "" for window in windows)
    assert 0 < sum(window.records for window in windows) <= 5000
    assert all(found[Statistic.MAX] == 1000 for window in windows for found in window.compute.values())
    assert gpu.events <= 2 * MOST_PAIRS


def test_torch_is_only_used_where_it_is_loaded_and_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not TorchCuda().usable()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # as while it is being imported
    assert not TorchCuda().usable()
    source = CudaEventSource()
    source.start("fwd")
    source.stop()
    assert source.take() == KernelWindow(by_section=True)


def test_with_real_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU and torch with CUDA")
    left = torch.randn(2048, 2048, device="cuda")
    source = CudaEventSource()
    for _ in range(20):
        source.start("gemm")
        for _ in range(10):
            left @ left
        source.stop()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        source.start("captured")
        left @ left
        source.stop()
    graph.replay()
    torch.cuda.synchronize()
    window = source.take()
    assert window.note == ""
    assert window.compute.keys() == {"gemm"}
    assert window.records == 20
    # Ten products of 17 Gflop each: no GPU takes less than 10 us or more than a second.
    assert 10 < window.compute["gemm"][Statistic.MED] < 1e6
