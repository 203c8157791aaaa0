"""Figures of times, documented scores, and what one rank sends."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.straggler import scores
from holdfast.straggler.exchange import Gathered, Layout, Snapshot, key, pack
from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.scores import Best, Statistic, Summary, medians, section_scores, summarise
from holdfast.straggler.window import of_rows


def kernel(median: float, number: int = 1, average: float | None = None) -> Summary:
    return {**summarise([median]), Statistic.NUM: number, Statistic.AVG: average or median}


def gpu_score(kernels: dict[str, Summary], references: dict[str, float]) -> float:
    return scores.gpu_score(medians(kernels), scores.weights(kernels), references)


def test_a_section_without_a_reference_or_a_time_has_no_score() -> None:
    found = section_scores(["a", "b", "c"], {"a": 1.0, "b": 1.0}, {"b": 1.0, "c": 1.0})
    assert math.isnan(found["a"]) and math.isnan(found["c"])
    assert found["b"] == 1.0


@pytest.mark.parametrize(
    ("kernels", "references", "score"),
    [
        (  # weighted by the time spent
            {"gemm": kernel(10.0, number=3, average=20.0), "add": kernel(4.0, number=5, average=2.0)},
            {"gemm": 5.0, "add": 4.0},
            (60 * 5 / 10 + 10 * 4 / 4) / (60 + 10),
        ),
        ({"gemm": kernel(10.0), "own": kernel(1000.0)}, {"gemm": 5.0}, 0.5),
        ({"own": kernel(1.0)}, {"gemm": 1.0}, math.nan),
        ({"gemm": kernel(0.0)}, {"gemm": 1.0}, math.nan),  # no measurement
        ({}, {}, math.nan),
    ],
)
def test_the_gpu_s_score(kernels: dict[str, Summary], references: dict[str, float], score: float) -> None:
    assert gpu_score(kernels, references) == pytest.approx(score, nan_ok=True)


def test_the_individual_reference_is_the_best_so_far_this_window_included() -> None:
    best = Best()
    assert best.update({"fwd": 5.0}) == {"fwd": 5.0}
    assert best.update({"fwd": 7.0, "bwd": 1.0}) == {"fwd": 5.0, "bwd": 1.0}
    assert best.update({"bwd": 2.0}) == {"bwd": 1.0}
    assert best.update({"fwd": 4.0}) == {"fwd": 4.0}


def test_best_times_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST_REMEMBERED", 10)
    best = Best()
    best.update({"gemm": 1.0})
    for step in range(100):
        best.update({"gemm": 2.0, f"grid_{step}": 1.0})
    assert best.update({"gemm": 3.0}) == {"gemm": 1.0}
    assert len(best._least) <= 11


TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(TIMES)
def test_as_the_standard_library_has_it(times: list[float]) -> None:
    summary = summarise(times)
    assert summary[Statistic.MED] == statistics.median_low(times)
    assert summary[Statistic.AVG] == pytest.approx(statistics.fmean(times))
    if len(times) > 1:
        assert summary[Statistic.STD] == pytest.approx(statistics.stdev(times), abs=1e-6)


def test_what_travels() -> None:
    sections = {"fwd": {**summarise([1.0, 2.0, 6.0]), Statistic.NUM: 10}}
    kernels = KernelWindow({"gemm": summarise([50.0])}, {"all_reduce": summarise([70.0])})
    columns = Snapshot(sections, kernels).columns(("bwd", "fwd"), (key("all_reduce", True), key("gemm"), 2))
    told = [list(figures) for figures in columns]
    assert math.isnan(told[0].pop(0)) and math.isnan(told[4].pop(0)) and told[0] == told[4] == [0, 0]
    assert told[1] == pytest.approx([0.002, 0.030, 10])
    assert told[2:4] == [pytest.approx([70e-6, 70e-6, 1]), pytest.approx([50e-6, 50e-6, 1])]

    third, layout = 1 / 3, Layout(2, 5, 2)
    rows = [pack(scores, columns, [9.0, 60.0]) for scores in ([third, 0.5], [1.0, math.pi])]
    assert [len(row) for row in rows] == [layout.length] * 2
    assert Gathered(b"".join(rows), layout).scores(range(2)) == [
        {0: third, 1: 1.0},
        {0: 0.5, 1: math.pi},
    ]  # exactly
    kinds = [("bwd", "section"), ("fwd", "section"), ("1", "collective"), ("2", "kernel"), ("3", "kernel")]
    window = of_rows(b"".join(rows), 16, kinds, ["here"] * 2, ["steal"])
    assert window.medians[1] == pytest.approx([math.nan, 0.002, 70e-6, 50e-6, math.nan], nan_ok=True)
    assert window.totals[0] == pytest.approx([0, 0.030, 70e-6, 50e-6, 0])
    assert window.counts[0].tolist() == [0, 10, 1, 1, 0]
    assert window.host_losses["steal"].tolist() == [9.0, 9.0]
    assert window.elapsed is not None and window.elapsed.tolist() == [60.0, 60.0]


def test_collectives_with_a_root_are_not_offered_for_comparison() -> None:
    names = ("ncclDevKernel_Broadcast_RING_LL", "ncclDevKernel_SendRecv", "ncclDevKernel_AllGather_RING_LL")
    mine = Snapshot({}, KernelWindow({}, {name: summarise([70.0]) for name in names}))
    assert mine.own.shares == {key(names[2], True): 1.0}
    told = mine.columns((), [key(name, True) for name in names])
    assert [figures[2] for figures in told] == [0, 0, 1]


def test_shares_are_of_all_kernels_and_times_of_those_that_compute() -> None:
    kernels = KernelWindow({"gemm": summarise([30.0, 30.0])}, {"gemm": summarise([20.0])})
    own = Snapshot({"fwd": summarise([1.0]), "reduce": summarise([2.0])}, kernels, waiting={"reduce"}).own
    assert own.kernels == {key("gemm"): 30.0}
    assert own.shares == {key("gemm"): 0.75, key("gemm", True): 0.25}
    assert (own.sections, list(own.waiting)) == ({"fwd": 1.0}, ["reduce"])
    assert Snapshot({}).own.shares == {}
