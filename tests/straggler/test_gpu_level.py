"""The level of a GPU, with values."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.straggler.window import (
    MAX_SAMPLE,
    Reference,
    Window,
    _weights,
    gpu_levels,
    reference_of,
    sample_of,
    sample_size,
)

from .simulation import Job, changed, factors

NOTHING = slice(0, 0)


def reference(window: Window) -> Reference:
    return reference_of(window, np.arange(window.ranks), slice(0, 40), NOTHING, 3, 3)


def levels(window: Window, min_keys: int = 3) -> np.ndarray:  # type: ignore[type-arg]
    return gpu_levels(window, np.arange(window.ranks), slice(0, 40), reference(window), min_keys, 3)


def test_no_kernel_decides_alone() -> None:
    weights = _weights(np.array([1000.0] + [1.0] * 49))
    assert weights.sum() == pytest.approx(1)
    assert weights.max() < 0.3
    assert _weights(np.array([9.0, 1.0])).max() < 0.7
    assert _weights(np.zeros(3)).tolist() == [0, 0, 0]


def test_a_large_group_is_sampled_and_a_small_one_is_not() -> None:
    assert sample_of(np.arange(MAX_SAMPLE)).tolist() == list(range(MAX_SAMPLE))
    assert [sample_size(groups) for groups in (1, 16, 1000)] == [384, 256, 64]
    drawn = sample_of(np.arange(16384))
    assert len(set(drawn.tolist())) == MAX_SAMPLE
    assert len(set((drawn % 8).tolist())) == 8  # every slot of a node


def test_missing_kernels_count_for_nothing() -> None:
    window = Job(16, kernels=40, noise=0.01, chip_spread=0, factor=factors(16, {3: 1.5})).window()
    medians, counts = window.medians.copy(), window.counts.copy()
    medians[3, ::3] = np.nan
    counts[4, ::3] = 2  # too few samples
    medians[5, ::3] = 0.0  # no time at all is no measurement
    found = levels(changed(window, medians=medians, counts=counts))
    assert np.exp(found[3]) == pytest.approx(1.5, rel=0.02)
    assert np.exp(found[[4, 5]]) == pytest.approx(1, abs=0.02)


def test_a_rank_with_too_little_in_common_has_no_level() -> None:
    window = Job(16, kernels=40).window()
    medians = window.medians.copy()
    medians[0], medians[1, 2:40] = np.nan, np.nan
    found = levels(changed(window, medians=medians))
    assert np.isnan(found[:2]).all()
    assert np.isfinite(found[2:]).all()
    assert np.isnan(levels(window, min_keys=41)).all()


def test_a_rank_with_little_of_the_groups_time_in_common_has_no_level() -> None:
    window = Job(16, kernels=40).window()
    medians = window.medians.copy()
    lightest = np.argsort(window.totals[:, :40].mean(axis=0))[:10]
    medians[0] = np.nan
    medians[0, lightest] = window.medians[0, lightest]
    assert np.isnan(levels(changed(window, medians=medians))[0])
