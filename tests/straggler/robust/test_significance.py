"""z values, what noise reaches among n ranks, and medians without NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from holdfast.straggler.robust.significance import center_and_spread, column_medians, critical, row_medians


def test_more_ranks_and_few_ranks_both_need_more() -> None:
    assert critical(512, 1e-4) == pytest.approx(5.1, abs=0.1)
    assert critical(16384, 1e-4) == pytest.approx(5.7, abs=0.1)
    assert critical(4, 1e-4) == pytest.approx(8.1, abs=0.1)
    assert critical(64, 1e-4) < critical(64, 1e-6)
    assert 4 < critical(4, 1e-4, windows=8) < critical(4, 1e-4, windows=2) < critical(4, 1e-4)
    assert critical(1, 1e-4) == float("inf")


def test_noise_stays_below_what_noise_reaches() -> None:
    """1,000 groups of 64 healthy ranks; at an error rate of 1 % some 10 to 30 pass, never hundreds."""
    draws = np.random.default_rng(1).normal(size=(1000, 64))
    passed = 0
    for values in draws:
        center, spread = center_and_spread(values)
        passed += bool(((values - center) / spread).max() > critical(64, 0.01))
    assert passed <= 40


def test_half_minus_one_outliers_move_the_spread_only_within_the_rest() -> None:
    center, spread = center_and_spread(np.array([1.0, 1.1, 0.9, 1.05, 100.0, 200.0]))
    assert center == pytest.approx(1.075)
    assert spread < 0.3
    assert np.isnan(center_and_spread(np.array([]))).all()


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 7)),
        elements=st.floats(-1e6, 1e6) | st.just(np.nan),
    )
)
def test_medians_are_those_of_numpy_without_the_nan(table: np.ndarray) -> None:  # type: ignore[type-arg]
    for row, median in zip(table, row_medians(table), strict=True):
        known = row[np.isfinite(row)]
        assert median == pytest.approx(np.median(known)) if len(known) else np.isnan(median)
    np.testing.assert_array_equal(column_medians(table.T), row_medians(table))
