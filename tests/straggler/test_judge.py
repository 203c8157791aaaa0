"""Who is slow: whole jobs, simulated, with cause and words; the rule itself, by tables and properties.

`python -m benchmarks.straggler_method` has the rates over many more jobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.straggler import Thresholds, find_stragglers
from holdfast.straggler.judge import Judge, Judgement
from holdfast.straggler.report import GPU, HOST, LATE, SECTION
from holdfast.straggler.rule import Findings
from holdfast.straggler.window import student_quantile
from tests.straggler.simulation import Job, assess, blamed, factors


def last(job: Job, windows: int = 5, judge: Judge | None = None) -> Judgement:
    return list(assess(job, windows, judge))[-1]


def anybody(job: Job, windows: int = 5, judge: Judge | None = None) -> set[int]:
    return {rank for judgement in assess(job, windows, judge) for rank in blamed(judgement)}


@pytest.mark.parametrize(
    ("ranks", "seeds", "noise"), [(4, 6, 0.1), (64, 2, 0.01), (64, 3, 0.1), (512, 1, 0.05)]
)
def test_no_rank_is_named_in_a_healthy_job(ranks: int, seeds: int, noise: float) -> None:
    """The soak has 100 seeds of each, and up to 16,384 ranks."""
    for seed in range(seeds):
        assert not anybody(Job(ranks, seed, noise=noise, collectives=3), 10)


def test_a_slow_gpu_among_512_is_named_with_the_third_report_that_counts() -> None:
    found = list(assess(Job(512, noise=0.05, factor=factors(512, {77: 1.15})), 4))
    assert [blamed(one) for one in found] == [[], [], [], [77]]
    (verdict,) = found[-1].verdicts
    assert (verdict.kind, verdict.node, verdict.section, verdict.since) == (GPU, "n9", None, 2)
    assert verdict.slowdown == pytest.approx(1.15, abs=0.02)
    assert re.match(
        r"its kernels take 1\d % longer than on the median of 511 comparable ranks", verdict.evidence
    )
    assert str(verdict).startswith("rank 77 (node n9): GPU, 1.1")


def test_a_slow_node_is_one_verdict() -> None:
    found = last(Job(128, factor=factors(128, dict.fromkeys(range(16, 24), 1.3))))
    (verdict,) = found.verdicts
    assert (verdict.rank, verdict.node, verdict.kind) == (None, "n2", GPU)
    assert verdict.ranks == tuple(range(16, 24))
    assert str(verdict).startswith(
        "node n2: GPU, 1.30 × slower since report 2, on all 8 ranks: its kernels take 30 % "
    )
    assert verdict.evidence.endswith(" longer than on the median of 120 comparable ranks of other nodes")


def test_a_node_is_compared_with_the_other_nodes_and_its_slow_ranks_are_counted() -> None:
    """Of two nodes the median of all ranks is halfway between them; and three ranks of the slow one are not slow."""
    (verdict,) = last(Job(16, noise=0.01, factor=factors(16, dict.fromkeys(range(8), 1.3)))).verdicts
    assert (verdict.node, verdict.slowdown) == ("n0", pytest.approx(1.3, abs=0.02))
    (verdict,) = last(Job(32, noise=0.01, factor=factors(32, dict.fromkeys(range(5), 1.3)))).verdicts
    assert str(verdict).startswith(
        "node n0: GPU, 1.30 × slower since report 2, on 5 of its 8 ranks: its kernels "
    )
    assert "the median of 24 comparable ranks of other nodes" in verdict.evidence


def stages() -> Job:
    """Four pipeline stages of 16 ranks; the last takes 1.5 times as long under the same names."""
    slow = factors(64, dict.fromkeys(range(48, 64), 1.5))
    return Job(64, kernels=100, factor=slow, section_factor={"forward": slow.copy()})


def test_a_longer_stage_is_nobodys_fault_where_groups_are_given_or_found() -> None:
    by_stage = [rank // 16 for rank in range(64)]
    assert not anybody(stages(), judge=Judge(groups=by_stage))
    job, judge = stages(), Judge()
    for _ in range(5):
        window = job.window()
        window.medians[:48, :8] = np.nan  # kernels that only the last stage has
        assert not judge.add(window).verdicts
    job = stages()
    job.factor[60] *= 1.3
    assert anybody(job, judge=Judge(groups=by_stage)) == {60}


def test_a_longer_stage_without_groups_is_named_with_a_hint() -> None:
    found = last(stages(), 4)
    assert {verdict.node for verdict in found.verdicts} == {"n6", "n7"}
    hint = "; if it has other work than these, give groups="
    assert all(verdict.evidence.endswith(hint) for verdict in found.verdicts)


def test_kernels_and_ranks_without_times_cost_the_others_nothing() -> None:
    assert anybody(Job(64, missing=0.02, factor=factors(64, {9: 1.3}))) == {9}
    job, judge = Job(16, factor=factors(16, {3: 1.4})), Judge()
    for _ in range(5):
        window = job.window()
        window.medians[7] = np.nan
        found = judge.add(window)
    assert blamed(found) == [3]


def test_a_few_odd_kernels_or_too_few_in_common_make_no_slow_rank() -> None:
    job, judge = Job(16, kernels=40, noise=0.01, chip_spread=0), Judge()
    for _ in range(5):
        window = job.window()
        window.medians[2, 10:14] *= 50
        window.medians[3, ::3] = 0.0  # no time at all is no measurement
        window.medians[1, 2:40] = np.nan
        window.medians[1, :2] *= 3
        lightest = np.argsort(window.totals[:, :40].mean(axis=0))
        window.medians[0, lightest[:10]] *= 3
        window.medians[0, lightest[10:]] = np.nan  # most of the group's time
        found = judge.add(window)
        assert not found.verdicts


def test_what_all_ranks_do_together_blames_nobody() -> None:
    job, judge = Job(32), Judge()
    assert not anybody(job, 5, judge)
    job.factor = np.full(32, 1.8)
    assert not anybody(job, 5, judge)
    job.times *= np.exp(np.random.default_rng(9).normal(0, 0.5, job.kernels)).astype(np.float32)
    assert not anybody(job, 5, judge)


def test_warm_up_counts_for_nothing() -> None:
    job, judge = Job(16, factor=factors(16, {2: 5.0})), Judge(thresholds=Thresholds(warmup_windows=2))
    assert all(one.warming_up for one in assess(job, 2, judge))
    job.factor = np.ones(16)
    assert not anybody(job, 5, judge)


def test_two_bad_windows_are_not_enough() -> None:
    job, judge = Job(16), Judge()
    for factor, windows in ((1.0, 3), (2.0, 2), (1.0, 3)):
        job.factor = factors(16, {2: factor})
        assert not anybody(job, windows, judge)
    job.factor = factors(16, {2: 2.0})
    assert anybody(job, 3, judge) == {2}


def test_a_rank_slow_against_its_own_past_is_named() -> None:
    """It was the fastest, and is as slow as the slowest now: no comparison with other ranks shows it."""
    job, judge = Job(32, noise=0.01, chip_spread=0.04), Judge()
    chips = job.chip[:, 0]
    fastest = int(chips.argmin())
    assert not anybody(job, 8, judge)
    job.factor = factors(32, {fastest: 1.08 * float(np.median(chips) / chips[fastest])})
    found = last(job, 4, judge)
    assert blamed(found) == [fastest]
    assert "in its own past, while comparable ranks stayed as they were" in found.verdicts[0].evidence


def test_a_fast_rank_that_becomes_like_the_others_is_not_blamed() -> None:
    job, judge = Job(32, factor=factors(32, {4: 0.6})), Judge()
    assert not anybody(job, 6, judge)
    job.factor = np.ones(32)
    assert not anybody(job, 6, judge)


def test_a_slow_section_is_named_and_the_one_that_costs_most() -> None:
    job = Job(32, section_factor={"data_loading": factors(32, {12: 3.5}), "step": factors(32, {12: 1.4})})
    (verdict,) = last(job).verdicts
    assert (verdict.rank, verdict.kind, verdict.section) == (12, SECTION, "data_loading")
    assert verdict.slowdown == pytest.approx(3.5, rel=0.15)
    assert " times as long as on the median of 31 comparable ranks" in verdict.evidence


@pytest.mark.parametrize(
    ("step", "named"), [(0.5, []), (None, [12]), (0.01, [12]), (math.nan, [12])], ids=str
)
def test_a_section_must_cost_its_share_of_the_time(step: float | None, named: list[int]) -> None:
    """Only loading is wrapped, 2 ms; whether 0.8 ms more are trouble depends on how long the steps are."""
    job, judge = Job(16, kernels=0, sections=("data",), section_noise=0.01), Judge()
    job.section_factor["data"] = factors(16, {12: 1.4})
    for _ in range(5):
        whole = job.window()
        elapsed = None if step is None else np.full(16, step * 200)
        small = replace(whole, medians=whole.medians / 25, totals=whole.totals / 25, elapsed=elapsed)
        found = judge.add(small)
    assert blamed(found) == named
    assert bool(found.suppressed) != bool(named)


def test_the_time_between_collectives_is_not_added_to_the_sections_in_it() -> None:
    """A section that takes 7 % of the step, where the rest of it is measured as well."""
    job, judge = Job(16, kernels=0, sections=("data", "step"), section_noise=0.01), Judge()
    job.section_factor["data"] = factors(16, {12: 1.3})
    for _ in range(5):
        window = job.window()
        scale = np.array([0.07, 0.93]) * np.nanmedian(window.medians) / np.nanmedian(window.medians, axis=0)
        medians, totals = window.medians * scale, window.totals * scale
        elapsed = np.full(16, totals.sum(axis=1).max())
        found = judge.add(replace(window, medians=medians, totals=totals, elapsed=elapsed))
    assert blamed(found) == [12] and not found.suppressed


def late(by: float, **job: Any) -> Job:
    """Rank 11 of 16 comes to each collective so much later than the others."""
    return Job(16, collectives=1, late=factors(16, {11: 1 + by}) - 1, **job)


def with_time(job: Job, judge: Judge, windows: int = 5) -> Judgement:
    """Steps of a tenth of a second, and the waits."""
    for _ in range(windows):
        found = judge.add(replace(job.window(), elapsed=np.full(job.ranks, 0.1 * 200)))
    return found


def test_who_arrives_last_is_named_although_the_others_have_the_long_collectives() -> None:
    (verdict,) = with_time(late(0.02, kernels=0, sections=()), Judge()).verdicts
    assert (verdict.rank, verdict.kind) == (11, LATE)
    assert verdict.slowdown == pytest.approx(0.1 / 0.08, rel=0.05)
    assert verdict.evidence.startswith(
        "at the collectives the others wait 4.0 s of each report for it, and neither"
    )


def test_a_new_section_that_explains_a_late_rank_is_named() -> None:
    """Sections of the earlier windows do not have it."""
    judge = Judge()
    plain = late(0.03, seed=1, kernels=0, sections=("data",))
    assert [verdict.kind for verdict in with_time(plain, judge, 4).verdicts] == [LATE]
    longer_eval = {"eval": factors(16, {11: 1.6})}
    more = late(0.03, seed=1, kernels=0, sections=("data", "eval"), section_factor=longer_eval)
    for _ in range(3):
        (verdict,) = with_time(more, judge, 1).verdicts
        assert verdict.rank == 11


def test_arrival_supports_a_verdict_on_a_gpu() -> None:
    slow = factors(16, {11: 1.3})
    supported = last(late(0.2, factor=slow)).verdicts[0]
    silent = last(Job(16, collectives=1, factor=slow)).verdicts[0]
    assert (supported.rank, supported.kind) == (silent.rank, silent.kind) == (11, GPU)
    assert "; at the collectives the others wait " in supported.evidence
    assert "the others wait" not in silent.evidence


def test_a_section_in_which_a_rank_only_waits_does_not_blame_it() -> None:
    """All but rank 0 arrive late; rank 0's long section is its waiting for them."""
    waits = {"backward": factors(16, {0: 1.6})}
    job = Job(16, kernels=0, collectives=1, late=0.03 * factors(16, {0: 0.0}), section_factor=waits)
    found = with_time(job, Judge())
    assert 0 not in blamed(found)
    assert any("longer at the collectives than the others do" in why for why in found.suppressed)


@pytest.mark.parametrize(("lost", "kind"), [(7.0, HOST), (1.0, SECTION)])
def test_a_hosts_losses_are_the_cause_where_they_explain_the_section(lost: float, kind: str) -> None:
    """The section lost 8 s: 200 calls × 40 ms."""
    job, judge = Job(16, section_factor={"forward": factors(16, {6: 1.8})}), Judge()
    for _ in range(5):
        causes = {"garbage collection": factors(16, {6: 1 + lost}) - 0.9, "CPU stolen": np.full(16, 0.3)}
        found = judge.add(replace(job.window(), host_losses=causes))
    (verdict,) = found.verdicts
    assert (verdict.rank, verdict.kind, verdict.section) == (6, kind, "forward")
    if kind == HOST:
        assert verdict.evidence.startswith(
            "garbage collection took 7.0 s more of each report than on comparable ranks"
        )


def test_losses_that_explain_nothing_blame_nobody() -> None:
    job, judge = Job(16), Judge()
    lost = factors(16, {3: 6.0}) - 1
    for _ in range(5):
        assert not judge.add(replace(job.window(), host_losses={"CPU stolen": lost})).verdicts


def test_a_section_called_gpu_is_not_the_gpu() -> None:
    job = Job(16, sections=("GPU", "step"), section_factor={"GPU": factors(16, {2: 2.0})})
    assert [(verdict.rank, verdict.kind) for verdict in last(job).verdicts] == [(2, SECTION)]


# -- the rule: tables, properties, and simulated jobs in numbers that a test can afford

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
    both = find_stragglers(times(32, whole(0, 1.5) | whole(1, 1.5)), nodes=nodes(32)).suppressed[0]
    assert both.nodes == ("gpu-0", "gpu-1")
    assert both.reason == "2 of 4 compared nodes are slow: probably other work"
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
            found = find_stragglers(table[max(0, last - 9) : last], nodes=nodes(ranks))
            assert named(found) == (set(), set())


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


def test_students_quantile() -> None:
    assert {given: student_quantile(*given) for given in EXACT} == pytest.approx(EXACT, rel=0.003)


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
