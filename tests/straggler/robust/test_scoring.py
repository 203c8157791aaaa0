"""The parts of one window's scores, with values: reference, GPU level, sections, lateness, confidence."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.straggler.robust.lateness import lateness
from holdfast.straggler.robust.reference import (
    MAX_SAMPLE,
    Reference,
    _weights,
    reference_of,
    sample_of,
    sample_size,
)
from holdfast.straggler.robust.sections import section_levels
from holdfast.straggler.robust.slowdown import gpu_levels
from holdfast.straggler.robust.spreads import Spreads
from holdfast.straggler.robust.verdict import confidence, percent, seconds
from holdfast.straggler.robust.window import Window

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


def test_the_level_of_a_uniformly_slow_rank_is_its_slowdown() -> None:
    found = levels(
        Job(16, kernels=40, noise=0.01, chip_spread=0, factor=factors(16, {3: 2.5, 5: 0.6})).window()
    )
    assert np.exp(found[3]) == pytest.approx(2.5, rel=0.02)
    assert np.exp(found[5]) == pytest.approx(0.6, rel=0.02)
    assert np.exp(np.delete(found, [3, 5])) == pytest.approx(1, abs=0.02)


def test_a_few_odd_kernels_make_no_slow_rank() -> None:
    window = Job(16, kernels=40, noise=0.01, chip_spread=0).window()
    medians = window.medians.copy()
    medians[2, 10:14] *= 50
    assert abs(levels(changed(window, medians=medians))[2]) < 0.03


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


def test_sections_have_levels_excess_and_cost() -> None:
    job = Job(8, kernels=0, section_noise=0, section_factor={"forward": factors(8, {1: 2.0})})
    found = section_levels(job.window(), np.arange(8), slice(0, 5), 3, 3)
    assert np.exp(found.level[1]) == pytest.approx([1, 2, 1, 1, 1])
    assert found.excess[1] == pytest.approx([0, 10, 0, 0, 0])  # 200 calls x 50 ms
    assert found.cost[1, 1] == pytest.approx(1)
    assert found.excess[0].sum() == 0


def test_a_section_that_two_ranks_have_says_nothing() -> None:
    window = Job(8, kernels=0).window()
    medians = window.medians.copy()
    medians[2:, 0] = np.nan
    assert np.isnan(
        section_levels(changed(window, medians=medians), np.arange(8), slice(0, 5), 3, 3).level[:, 0]
    ).all()


def test_the_rank_that_waits_least_is_late_by_what_the_others_wait() -> None:
    late = np.zeros(8)
    late[6] = 0.02
    window = Job(8, kernels=0, sections=(), collectives=3, late=late).window()
    columns = slice(0, 3)
    found = lateness(window, np.arange(8), columns, 3, 3)
    assert found.usual[6] == pytest.approx(3 * 200 * 0.02, rel=0.1)
    assert found.usual.argmax() == found.mean.argmax() == 6
    half = window.counts.copy()
    half[0] //= 2  # measured half as often: compared per call
    fewer = changed(window, counts=half, totals=window.medians * half)
    again = lateness(fewer, np.arange(8), columns, 3, 3)
    for one, other in ((again.usual, found.usual), (again.mean, found.mean)):
        assert one == pytest.approx(other, rel=0.01, abs=0.01)
    assert np.isnan(lateness(window, np.arange(2), columns, 3, 3).usual).all()


def test_confidence_orders_verdicts() -> None:
    assert confidence(1, 2, 2, None) == 0.5
    assert confidence(2, 2, 2, None) > confidence(1, 3, 2, None) > confidence(1, 2, 2, None)
    assert confidence(1, 2, 2, True) > confidence(1, 2, 2, None) > confidence(1, 2, 2, False) > 0
    assert confidence(100, 3, 2, True) < 1


def test_numbers_as_people_write_them() -> None:
    assert [percent(1.152), percent(3.44)] == ["15 % longer", "3.4 times as long"]
    assert [seconds(2.345), seconds(0.0123), seconds(4.5e-5)] == ["2.3 s", "12 ms", "45 µs"]


def test_a_rank_with_little_of_the_groups_time_in_common_has_no_level() -> None:
    window = Job(16, kernels=40).window()
    medians = window.medians.copy()
    lightest = np.argsort(window.totals[:, :40].mean(axis=0))[:10]
    medians[0] = np.nan
    medians[0, lightest] = window.medians[0, lightest]
    assert np.isnan(levels(changed(window, medians=medians))[0])


def test_the_believed_spread_is_at_least_that_of_past_windows() -> None:
    spreads = Spreads()
    assert spreads.believed("gpu", 0.01, 0.02) == (0.02, 1)
    assert spreads.believed("gpu", 0.30, 0.02) == (0.30, 2)
    assert spreads.believed("gpu", 0.20, 0.02) == (0.20, 3)
    assert spreads.believed("gpu", 0.01, 0.02) == (pytest.approx(0.105), 4)  # median of the four
    assert spreads.believed("forward", 0.01, 0.02) == (0.02, 1)
    spreads.forget()
    assert spreads.believed("gpu", 0.01, 0.02) == (0.02, 1)
