"""The documented formulas, with values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.straggler import scores
from holdfast.straggler.scores import Best, Statistic, Summary, medians, section_scores, summarise


def kernel(median: float, number: int = 1, average: float | None = None) -> Summary:
    return {**summarise([median]), Statistic.NUM: number, Statistic.AVG: average or median}


def gpu_score(kernels: dict[str, Summary], references: dict[str, float]) -> float:
    return scores.gpu_score(medians(kernels), scores.weights(kernels), references)


def test_twice_as_slow_is_half_the_score() -> None:
    assert section_scores(["fwd"], {"fwd": 20.0}, {"fwd": 10.0}) == {"fwd": 0.5}


def test_a_section_without_a_reference_or_a_time_has_no_score() -> None:
    found = section_scores(["a", "b", "c"], {"a": 1.0, "b": 1.0}, {"b": 1.0, "c": 1.0})
    assert math.isnan(found["a"]) and math.isnan(found["c"])
    assert found["b"] == 1.0


def test_the_gpu_s_score_is_weighted_by_time_spent() -> None:
    kernels = {"gemm": kernel(10.0, number=3, average=20.0), "add": kernel(4.0, number=5, average=2.0)}
    expected = (60 * 5 / 10 + 10 * 4 / 4) / (60 + 10)
    assert gpu_score(kernels, {"gemm": 5.0, "add": 4.0}) == pytest.approx(expected)


def test_only_kernels_with_a_reference_count() -> None:
    kernels = {"gemm": kernel(10.0), "own": kernel(1000.0)}
    assert gpu_score(kernels, {"gemm": 5.0}) == 0.5


def test_no_common_kernel_no_score() -> None:
    assert math.isnan(gpu_score({"own": kernel(1.0)}, {"gemm": 1.0}))
    assert math.isnan(gpu_score({}, {}))


def test_a_median_of_zero_is_no_measurement() -> None:
    assert medians({"a": kernel(0.0), "b": kernel(2.0)}) == {"b": 2.0}
    assert math.isnan(gpu_score({"a": kernel(0.0)}, {"a": 1.0}))


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


@given(st.dictionaries(st.sampled_from("abc"), st.floats(0.001, 1e6), min_size=1))
def test_the_first_individual_score_is_one(times: dict[str, float]) -> None:
    references = Best().update(times)
    assert set(section_scores(times, times, references).values()) == {1.0}
