"""Windows taken together: what they find that one window cannot, and what they still do not."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.straggler.robust.pooled import KEPT, MOST_RANKS, Pools, student
from holdfast.straggler.robust.thresholds import Thresholds

from .simulation import Job, assess, blamed, factors

RULES = Thresholds()
FLOOR, EFFECT = 0.05, RULES.min_effect


def margins(levels: np.ndarray, rules: Thresholds = RULES) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Window after window."""
    pools = Pools()
    return [pools.margin("a", level, FLOOR, EFFECT, rules) for level in levels]


def noisy(windows: int, ranks: int, sigma: float, seed: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(seed).normal(0, sigma, (windows, ranks))


@pytest.mark.parametrize(
    ("freedom", "chance", "limit"),
    [(1, 0.025, 12.706), (2, 0.025, 4.303), (3, 0.0005, 12.924), (8, 0.0005, 5.041), (30, 0.025, 2.042)],
)
def test_students_limits_are_those_of_the_tables(freedom: int, chance: float, limit: float) -> None:
    assert student(freedom, chance) == pytest.approx(limit, abs=1e-3)


def test_a_rank_twice_as_slow_in_noise_is_found_by_several_windows() -> None:
    levels = noisy(KEPT, 4, 0.1)
    levels[:, 2] += np.log(2)
    told = margins(levels)
    assert told[0].tolist() == [0.0] * 4
    assert told[-1][2] >= 1 and not (np.delete(told[-1], 2) >= 1).any()


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.2])
@pytest.mark.parametrize("ranks", [3, 4, 8, MOST_RANKS])
def test_noise_is_no_straggler(ranks: int, sigma: float) -> None:
    for seed in range(30):
        assert not any((margin >= 1).any() for margin in margins(noisy(12, ranks, sigma, seed)))


def test_one_bad_window_is_none_and_a_rank_that_recovered_is_let_go() -> None:
    levels = noisy(KEPT, 4, 0.02)
    levels[3, 1] += 5.0
    assert not any((margin >= 1).any() for margin in margins(levels))
    levels = noisy(KEPT, 4, 0.02)
    levels[:, 2] += 1.0
    levels[-1, 2] -= 1.0
    told = margins(levels)
    assert told[-2][2] >= 1 and told[-1][2] < 1


def test_a_difference_that_others_show_as_well_is_none() -> None:
    """Ranks that differ lastingly, and hardly scatter."""
    levels = noisy(KEPT, 4, 0.001) + np.array([0.0, 0.15, 0.3, 0.45])
    assert not any((margin >= 1).any() for margin in margins(levels))


def test_large_groups_and_gaps_are_left_alone() -> None:
    levels = noisy(4, MOST_RANKS + 1, 0.01)
    levels[:, 0] += 1
    assert not any(margin.any() for margin in margins(levels))
    few = noisy(4, 4, 0.01)
    few[:, 0] += 1
    few[:, 2:] = np.nan
    assert not any(margin.any() for margin in margins(few))
    gaps = noisy(6, 4, 0.01)
    gaps[:, 0] += 1
    gaps[::2, 1] = np.nan
    assert margins(gaps)[-1][0] >= 1


def test_a_judge_says_that_windows_were_taken_together() -> None:
    """Of jobs with four ranks and a tenth of noise, single windows found about half within ten reports."""
    found, evidence = 0, ""
    for seed in range(20):
        job = Job(4, seed, kernels=0, section_noise=0.1, section_factor={"forward": factors(4, {1: 2.0})})
        told = list(assess(job, 10))
        assert all(blamed(one) in ([], [1]) for one in told)
        found += any(one.verdicts for one in told)
        evidence += "".join(verdict.evidence for one in told for verdict in one.verdicts)
    assert found == 20
    assert "windows taken together" in evidence
