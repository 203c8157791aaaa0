"""Each rank against its own past, with levels given directly."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from holdfast.straggler.baseline import Baseline

RANKS = 6
NODES = [f"n{rank // 2}" for rank in range(RANKS)]
ALL = [np.arange(RANKS)]


def feed(baseline: Baseline, *values: float, rank: int | None = None, by: float = 0.0) -> np.ndarray:  # type: ignore[type-arg]
    """Windows in which every rank has each of the levels, and `rank` has `by` more; the last excess."""
    excess = {"gpu": np.zeros(0)}
    for value in values:
        levels = np.full(RANKS, value)
        if rank is not None:
            levels[rank] += by
        excess = baseline.update({"gpu": levels}, ALL, NODES)
    return excess["gpu"]


def restored(*levels: float) -> Baseline:
    """A restarted job, past its warm-up."""
    baseline = Baseline(warmup_windows=0)
    baseline.restore(NODES, {"gpu": np.array(levels)})
    return baseline


def test_warm_up_is_not_learned() -> None:
    baseline = Baseline(warmup_windows=2)
    assert np.isnan(feed(baseline, 5.0, 5.0)).all()
    assert np.isnan(feed(baseline, 1.0, 1.0, 1.0)).all()  # learning
    assert baseline.levels["gpu"].tolist() == [1.0] * RANKS


def test_one_rank_that_becomes_slow_is_slow_against_its_own_past() -> None:
    baseline = Baseline()
    feed(baseline, 9.0, 1.0, 1.0, 1.0)
    excess = feed(baseline, 1.0, rank=2, by=math.log(1.3))
    assert excess[2] == pytest.approx(math.log(1.3))
    assert excess[[0, 1, 3, 4, 5]] == pytest.approx(0)


def test_a_change_of_all_ranks_together_is_nobodys() -> None:
    baseline = Baseline()
    feed(baseline, 9.0, 1.0, 1.0, 1.0)
    assert feed(baseline, 2.0) == pytest.approx(0)
    assert feed(baseline, 2.0, rank=1, by=0.2)[1] == pytest.approx(0.2)
    assert feed(baseline, 0.5) == pytest.approx(0, abs=0.01)


def test_a_slow_rank_is_not_got_used_to() -> None:
    baseline = Baseline()
    feed(baseline, 9.0, 1.0, 1.0, 1.0)
    assert feed(baseline, *[1.0] * 20, rank=0, by=0.3)[0] > 0.2


def test_what_is_unknown_now_and_then_is_learned_from_the_rest() -> None:
    baseline = Baseline(warmup_windows=0)
    for value in (1.0, math.nan, 1.0, math.nan, 1.0):
        baseline.update({"gpu": np.full(RANKS, value)}, ALL, NODES)
    assert feed(baseline, 1.2, rank=3, by=0.1)[3] == pytest.approx(0.1)
    assert np.isnan(feed(baseline, math.nan)).all()


def test_it_survives_a_save_and_a_restore() -> None:
    before = Baseline()
    feed(before, 9.0, 1.0, 1.0, 1.0)
    after = Baseline()
    after.restore(NODES, before.levels)
    assert np.isnan(feed(after, 9.0)).all()  # a restarted job warms up again
    assert feed(after, 1.0, rank=4, by=0.25)[4] == pytest.approx(0.25)


def test_a_rank_on_another_node_starts_anew() -> None:
    saved = Baseline()
    feed(saved, 9.0, 1.0, 1.0, 1.0)
    after = Baseline(warmup_windows=0)
    after.restore(NODES, saved.levels)
    excess = after.update({"gpu": np.ones(RANKS)}, ALL, [*NODES[:4], "spare", "spare"])["gpu"]
    assert np.isnan(excess).tolist() == [False] * 4 + [True] * 2
    assert np.isnan(after.update({"gpu": np.ones(2)}, [np.arange(2)], ["a", "b"])["gpu"]).all()


@pytest.mark.parametrize(
    ("now", "stale"),
    [(0.06, -0.5), *product([0.06, 0.3], [-3.0, 3.0, math.inf, math.nan, 3e38])],
)
def test_a_restored_level_that_is_implausible_is_learned_anew(now: float, stale: float) -> None:
    """It was unlike its group and is unlike itself: another job's, or another model's."""
    baseline = restored(0.0, 0.0, stale, 0.0, 0.0, 0.0)
    for _ in range(3):
        excess = feed(baseline, 0.0, rank=2, by=now)
        assert np.isnan(excess[2]) and excess[[0, 1, 3, 4, 5]] == pytest.approx(0)
    assert feed(baseline, 0.0, rank=2, by=now)[2] == pytest.approx(0)
    assert feed(baseline, 0.0, rank=2, by=now + 0.2)[2] == pytest.approx(0.2)


def test_a_whole_file_of_another_job_is_learned_anew() -> None:
    baseline = restored(0.0, -2.0, 1.0, 3.0, -1.0, 5.0)
    for _ in range(4):
        assert np.nan_to_num(feed(baseline, 0.0)) == pytest.approx(0)


def test_a_rank_that_became_slow_over_the_restart_is_slow_against_its_own_past() -> None:
    baseline = restored(0.0, 0.05, -0.1, 0.0, 0.0, 0.0)
    assert feed(baseline, 0.0, rank=2, by=0.3)[2] == pytest.approx(0.4)


def test_a_rank_that_was_slow_and_still_is_keeps_its_level() -> None:
    baseline = restored(0.0, 0.0, 0.4, 0.0, 0.0, 0.0)
    assert feed(baseline, 0.0, rank=2, by=0.42)[2] == pytest.approx(0.02)
    assert feed(baseline, 0.0, rank=2, by=0.8)[2] > 0.35  # it is believed from the first look on


def test_a_rank_that_is_first_seen_later_is_looked_at_then() -> None:
    baseline = restored(-3.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert np.isnan(feed(baseline, 0.0, rank=0, by=math.nan)[0])
    assert np.isnan(feed(baseline, 0.0)[0])
