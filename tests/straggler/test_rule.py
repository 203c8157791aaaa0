"""Who is slow: tables, properties, and simulated jobs in numbers that a test can afford.

`python -m benchmarks.straggler_method` has the rates over many more jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.straggler import Thresholds, find_stragglers
from holdfast.straggler.rule import Findings
from holdfast.straggler.window import student_quantile

Slow = dict[int, float]


def times(ranks: int, slow: Slow | None = None, noise: float = 0.02, windows: int = 9, seed: int = 0) -> Any:
    """Seconds [window, rank, signal]; signal 0 takes some ranks so many times as long."""
    table = np.exp(np.random.default_rng(seed).normal(0, noise, (windows, ranks, 5)))
    for rank, factor in (slow or {}).items():
        table[:, rank, 0] *= factor
    return table


def nodes(ranks: int, size: int = 8) -> list[str]:
    return [f"gpu-{rank // size}" for rank in range(ranks)]


def whole(node: int, factor: float, size: int = 8) -> Slow:
    return dict.fromkeys(range(size * node, size * node + size), factor)


def named(found: Findings) -> tuple[set[int], set[str]]:
    return {one.rank for one in found.ranks}, {one.node for one in found.nodes}


@pytest.mark.parametrize(
    ("ranks", "slow", "on_nodes", "who", "where"),
    [
        (8, {}, False, set(), set()),
        (8, {3: 1.2}, False, {3}, set()),
        (8, {3: 1.2, 6: 1.3}, False, {3, 6}, set()),
        (4, {0: 1.2, 1: 1.2}, False, set(), set()),
        (8, dict.fromkeys(range(4), 1.2), True, set(), set()),
        (8, {3: 0.5}, False, set(), set()),
        (8, {3: 1.05}, False, set(), set()),
        (16, whole(1, 1.15), True, set(), {"gpu-1"}),
        (64, whole(1, 1.15), True, set(), {"gpu-1"}),
        (64, whole(1, 1.15) | whole(5, 1.3), True, set(), {"gpu-1", "gpu-5"}),
        (64, whole(1, 1.15) | {9: 1.5}, True, {9}, {"gpu-1"}),
        (64, whole(1, 1.15) | {40: 1.3}, True, {40}, {"gpu-1"}),
        (64, {8: 1.3, 9: 1.3}, True, {8, 9}, set()),
        (16, whole(1, 1.2) | whole(0, 1.2), True, set(), set()),
    ],
    ids=range(14),
)
def test_who_is_named(ranks: int, slow: Slow, on_nodes: bool, who: set[int], where: set[str]) -> None:
    found = find_stragglers(times(ranks, slow), nodes=nodes(ranks) if on_nodes else None)
    assert named(found) == (who, where)


def test_what_is_said_of_a_rank() -> None:
    table = times(8, {3: 1.5}, noise=0.001)
    table[:4, 3, 0] /= 1.5
    (slow,) = find_stragglers(table).ranks
    assert (slow.rank, slow.signal, slow.signals, slow.since) == (3, 0, (0,), 4)
    assert slow.slowdown == pytest.approx(1.5, rel=0.01)
    table[:, 3, 2] *= 1.2
    (slow,) = find_stragglers(table).ranks
    assert (slow.signal, slow.signals) == (None, (0, 2))
    assert slow.slowdown == pytest.approx(1.35, rel=0.01)


def test_windows_are_numbered_on_and_who_stays_named_keeps_its_since() -> None:
    table, previous = times(8, {3: 1.5}, windows=30), None
    for number in range(30):
        previous = find_stragglers(table[max(0, number - 8) : number + 1], previous=previous)
        assert previous.last == number
    assert previous is not None and [one.since for one in previous.ranks] == [0]


def test_groups_are_compared_by_themselves() -> None:
    stages = dict.fromkeys(range(4, 8), 3.0)
    assert named(find_stragglers(times(8, stages | {1: 1.4}), groups=[0] * 4 + [1] * 4))[0] == {1}
    tensor_parallel = [rank % 8 for rank in range(64)]
    found = find_stragglers(times(64, whole(2, 1.2)), groups=tensor_parallel, nodes=nodes(64))
    assert named(found) == (set(), {"gpu-2"})
    stage_of_a_node = [rank // 8 for rank in range(64)]
    found = find_stragglers(times(64, whole(2, 1.2)), groups=stage_of_a_node, nodes=nodes(64))
    assert named(found) == (set(), set())


def test_what_is_left_out_and_why() -> None:
    half = dict.fromkeys((0, 1, 2, 8, 9, 10, 11), 1.5)
    (many,) = find_stragglers(times(16, half), nodes=nodes(16)).suppressed
    assert (many.ranks, many.reason) == (tuple(half), "7 of 16 compared ranks are slow: probably other work")
    (both,) = find_stragglers(times(32, whole(0, 1.5) | whole(1, 1.5)), nodes=nodes(32)).suppressed[:1]
    assert (both.nodes, both.reason) == (
        ("gpu-0", "gpu-1"),
        "2 of 4 compared nodes are slow: probably other work",
    )
    cheap = times(8, {3: 1.5})
    cheap[:, :, 0] *= 0.05
    found = find_stragglers(cheap)
    assert not found.ranks
    assert "% of the measured time is spent there" in found.suppressed[0].reason


@pytest.mark.parametrize(("cost", "who"), [(0.03, set()), (0.07, {3})])
def test_a_column_that_holds_the_others_is_not_summed_with_them(cost: float, who: set[int]) -> None:
    """A section of this share of the step, one for the rest of it, and the step itself."""
    table = times(8, {3: 1.3}, noise=0.005)[:, :, :3]
    table[:, :, 0] *= cost
    table[:, :, 1] *= 1 - cost
    for step in (table[:, :, 0] + table[:, :, 1], np.ones((9, 8))):  # with more in it, and with none measured
        table[:, :, 2] = step
        assert named(find_stragglers(table, whole=2))[0] == who
    assert not find_stragglers(table).ranks
    table[:, :, 1] = np.nan  # most of the step is in no section
    assert named(find_stragglers(table, whole=2))[0] == who


@pytest.mark.parametrize("gone", [np.nan, np.inf, -np.inf, 0.0, -1.0])
def test_a_rank_without_times_is_not_named_and_disturbs_nobody(gone: float) -> None:
    table = times(8, {3: 1.5})
    table[:, 5] = gone
    assert named(find_stragglers(table, nodes=nodes(8, 4))) == ({3}, set())
    table[-1, 3] = gone
    assert named(find_stragglers(table)) == (set(), set())


@pytest.mark.parametrize(
    ("shape", "more", "problem"),
    [
        ((9, 8), {}, "2 dimensions"),
        ((9, 8, 1), {"groups": [0]}, "1 groups for 8 ranks"),
        ((9, 8, 1), {"nodes": ["a"]}, "1 nodes for 8 ranks"),
    ],
)
def test_what_does_not_fit_is_refused(shape: Sequence[int], more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        find_stragglers(np.ones(shape), **more)


@pytest.mark.parametrize("shape", [(0, 8, 2), (2, 8, 2), (9, 0, 2), (9, 8, 0), (9, 1, 2), (9, 2, 2)])
def test_too_little_to_compare_names_nobody(shape: Sequence[int]) -> None:
    assert find_stragglers(np.ones(shape), nodes=["n"] * shape[1]) == Findings(last=shape[0] - 1)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(3, 24), st.integers(0, 1000), st.sampled_from([1.0, 1.3, 2.0]), st.floats(1e-6, 1e6),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_neither_unit_nor_order_matter(
    ranks: int, seed: int, factor: float, unit: float, random: Any
) -> None:
    table = times(ranks, {seed % ranks: factor}, seed=seed)
    order = list(range(ranks))
    random.shuffle(order)
    plain = named(find_stragglers(table, nodes=nodes(ranks, 4)))
    other = find_stragglers(table[:, order] * unit, nodes=[f"gpu-{rank // 4}" for rank in order])
    assert plain == ({order[one] for one in named(other)[0]}, named(other)[1])


@pytest.mark.parametrize(
    ("ranks", "noise"), [(3, 0.1), (4, 0.2), (8, 0.1), (64, 0.01), (64, 0.2), (512, 0.1)]
)
def test_healthy_jobs_name_nobody(ranks: int, noise: float) -> None:
    for seed in range(1 if ranks > 100 else 5):
        table = times(ranks, noise=noise, windows=20, seed=seed)
        for last in range(3, 21):
            assert named(find_stragglers(table[max(0, last - 9) : last], nodes=nodes(ranks))) == (
                set(),
                set(),
            )


def test_long_tails_are_noise() -> None:
    """Two in a hundred values are a third longer: no rank is slow for that."""
    wrong = 0
    for seed in range(20):
        chance = np.random.default_rng(seed)
        table = times(64, noise=0.05, windows=20, seed=seed)
        table *= 1 + (chance.random(table.shape) < 0.02) * chance.exponential(0.35, table.shape)
        wrong += any(find_stragglers(table[max(0, last - 9) : last]).ranks for last in range(3, 21))
    assert wrong <= 1


def test_noise_that_lasts_is_noise() -> None:
    """Each window keeps half of what the last one had; taken as independent, it names a rank in 7 of 10 jobs."""
    wrong = 0
    for seed in range(30):
        noise = np.log(times(16, noise=0.1, windows=20, seed=seed))
        for window in range(1, 20):
            noise[window] = 0.5 * noise[window - 1] + math.sqrt(1 - 0.5**2) * noise[window]
        wrong += any(find_stragglers(np.exp(noise[max(0, last - 9) : last])).ranks for last in range(3, 21))
    assert wrong <= 6


def test_a_threshold_is_what_it_says() -> None:
    """1.05 among 64 ranks at 1 % noise, where `min_slowdown` allows it."""
    low = Thresholds(min_slowdown=1.04)
    found = [
        named(find_stragglers(times(64, {7: 1.05}, noise=0.01, windows=6, seed=seed), thresholds=low))[0]
        for seed in range(20)
    ]
    assert sum(who == {7} for who in found) >= 18
    assert not find_stragglers(times(64, {7: 1.05}, noise=0.01)).ranks


EXACT = {
    (1e-3, 2): 22.3271, (1e-3, 5): 5.8934, (1e-3, 30): 3.3852, (1e-5, 3): 47.9277, (1e-5, 8): 8.9070,
    (1e-5, 100): 4.4784, (1e-8, 4): 131.5947, (1e-8, 20): 8.9429, (1e-8, 1000): 5.6579,
}  # fmt: skip


@pytest.mark.parametrize(("chance", "freedom"), EXACT)
def test_students_quantile(chance: float, freedom: float) -> None:
    assert student_quantile(chance, freedom) == pytest.approx(EXACT[chance, freedom], rel=0.003)  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("min_slowdown", 1.0, "greater than 1"),
        ("min_slowdown", math.nan, "greater than 1"),
        ("min_cost_share", 1, "from 0 to below 1"),
        ("error_rate", 0, "greater than 0, at most 0.1"),
        ("noise_floor", -0.1, "from 0 to 1"),
        ("warmup_windows", -1, "from 0 on"),
        ("warmup_windows", 1.5, "a whole number"),
        ("min_ranks", 2, "from 3 on"),
        ("min_samples", True, "from 1 on"),
        ("min_samples", "3", "from 1 on"),
    ],
)
def test_a_value_out_of_range_names_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=r"^straggler thresholds: ") as error:
        Thresholds(**{name: value})
    assert allowed in str(error.value)
    assert "\n" not in str(error.value)
