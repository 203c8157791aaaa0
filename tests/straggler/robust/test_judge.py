"""Whole jobs, simulated: who is blamed, who is not, after how many windows, and in what words."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from holdfast.straggler.robust import Assessment, Judge, Thresholds, Window
from holdfast.straggler.robust.verdict import GPU, HOST, LATE, SECTION

from .simulation import Job, assess, blamed, changed, factors


def last(job: Job, windows: int = 3, judge: Judge | None = None) -> Assessment:
    return list(assess(job, windows, judge))[-1]


def anybody(job: Job, windows: int = 5, judge: Judge | None = None) -> set[int]:
    return {rank for assessment in assess(job, windows, judge) for rank in blamed(assessment)}


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.10])
@pytest.mark.parametrize(("ranks", "seeds"), [(8, 6), (64, 3), (512, 1)])
def test_nobody_is_blamed_in_a_healthy_job(ranks: int, seeds: int, noise: float) -> None:
    assert not set().union(*(anybody(Job(ranks, seed, noise=noise)) for seed in range(seeds)))


@pytest.mark.parametrize("ranks", [4096, 16384])
def test_nobody_is_blamed_in_a_healthy_large_job(ranks: int) -> None:
    assert not anybody(Job(ranks, seed=ranks, noise=0.10), windows=2, judge=Judge(thresholds=AT_ONCE))


@pytest.mark.parametrize("noise", [0.01, 0.10])
def test_many_groups_of_a_large_job_blame_only_the_slow_rank(noise: float) -> None:
    job = Job(4096, noise=noise, factor=factors(4096, {700: 1.2}))
    assert anybody(job, 3, Judge(groups=[rank % 32 for rank in range(4096)])) == {700}


AT_ONCE = Thresholds(warmup_windows=0, windows_needed=1, windows_kept=1)
"""No second window forgives a mistake of the first."""


def test_a_gpu_15_percent_slow_among_512_is_found_in_three_windows() -> None:
    found = last(Job(512, noise=0.05, factor=factors(512, {77: 1.15})))
    assert blamed(found) == [77]
    verdict = found.verdicts[0]
    assert (verdict.kind, verdict.node, verdict.section) == (GPU, "n9", None)
    assert verdict.slowdown == pytest.approx(1.15, abs=0.05)
    assert verdict.confidence >= 0.5
    assert re.fullmatch(
        r"its kernels take 1\d % longer than on the median of 511 comparable ranks "
        r"\(\d+ times the usual spread\), in 2 of the last 2 windows",
        verdict.evidence,
    )
    assert str(verdict).startswith("rank 77 (node n9): GPU, 1.")


def test_a_rank_that_is_too_fast_blames_nobody_else() -> None:
    for seed in range(3):
        assert not anybody(Job(512, seed, factor=factors(512, {5: 0.6})))
        assert not anybody(Job(8, seed, factor=factors(8, {5: 0.6})))


def stages(ranks: int, own: bool) -> Job:
    """Four pipeline stages; the last takes 1.5 times as long under the same names; it may have kernels of its own."""
    slow = dict.fromkeys(range(ranks - ranks // 4, ranks), 1.5)
    job = Job(ranks, kernels=100, factor=factors(ranks, slow))
    job.section_factor["forward"] = factors(ranks, slow)
    if own:
        inner = job.window

        def window() -> Window:
            whole = inner()
            medians = whole.medians.copy()
            medians[: ranks - ranks // 4, :8] = np.nan
            return changed(whole, medians=medians)

        job.window = window  # type: ignore[method-assign]
    return job


HINT = "; if it is a pipeline stage with more work, give groups="


@pytest.mark.parametrize(("ranks", "stage"), [(16, [15]), (16, [0]), (32, [15, 31]), (32, [30, 31])])
def test_a_stage_with_more_work_is_told_about_groups_once(ranks: int, stage: list[int]) -> None:
    job = Job(ranks, factor=factors(ranks, dict.fromkeys(stage, 1.5)))
    told = [[HINT in verdict.evidence for verdict in one.verdicts] for one in assess(job, 5)]
    assert told == [[], [], *([[hint] * len(stage) for hint in (True, False, False)])]


def test_nobody_is_told_about_groups_who_gave_them_or_whose_gpu_became_slow() -> None:
    job = Job(16, factor=factors(16, {15: 1.5}))
    (verdict,) = last(job, judge=Judge(groups=[0] * 16)).verdicts
    assert HINT not in verdict.evidence
    job, judge = Job(16), Judge()
    assert not anybody(job, 3, judge)
    job.factor = factors(16, {15: 1.5})
    (verdict,) = last(job, 2, judge).verdicts
    assert HINT not in verdict.evidence
    (verdict,) = last(Job(16, factor=factors(16, {7: 1.5}))).verdicts
    assert HINT not in verdict.evidence


def test_a_longer_last_stage_is_nobodys_fault_when_groups_are_given() -> None:
    judge = Judge(groups=[rank // 16 for rank in range(64)])
    assert not anybody(stages(64, own=False), judge=judge)


def test_a_longer_last_stage_is_nobodys_fault_when_groups_are_found() -> None:
    job = stages(64, own=True)
    found = last(job)
    assert len(set(found.groups.tolist())) == 2
    assert not found.verdicts
    assert not found.withheld


def test_without_groups_a_quarter_of_the_ranks_is_not_blamed_but_mentioned() -> None:
    found = last(stages(64, own=False))
    assert not found.verdicts
    assert found.withheld[0] == (
        "16 of 64 compared ranks are slow (GPU): too many to be stragglers, so probably other work; "
        "nobody is blamed. Give groups= if they do different work."
    )


def test_a_slow_rank_inside_the_longer_stage_is_found() -> None:
    job = stages(64, own=False)
    job.factor[60] *= 1.3
    found = last(job, judge=Judge(groups=[rank // 16 for rank in range(64)]))
    assert blamed(found) == [60]


def test_a_kernel_missing_on_some_ranks_leaves_everybody_scored() -> None:
    found = last(Job(64, missing=0.02, factor=factors(64, {9: 1.3})))
    assert np.isfinite(found.gpu_slowdown).all()
    assert set(found.groups.tolist()) == {0}
    assert blamed(found) == [9]


def test_a_rank_without_data_is_not_scored_and_everybody_else_is() -> None:
    job, judge = Job(16, factor=factors(16, {3: 1.4})), Judge()
    for _ in range(3):
        window = job.window()
        window.medians[7] = np.nan
        found = judge.add(window)
    assert np.flatnonzero(np.isnan(found.gpu_slowdown)).tolist() == [7]
    assert blamed(found) == [3]


def test_a_phase_change_of_all_ranks_together_blames_nobody() -> None:
    job, judge = Job(32), Judge()
    assert not anybody(job, 5, judge)
    job.factor = np.full(32, 1.8)
    assert not anybody(job, 5, judge)
    job.times *= np.exp(np.random.default_rng(9).normal(0, 0.5, job.kernels)).astype(np.float32)
    assert not anybody(job, 5, judge)


def test_warm_up_is_skipped() -> None:
    job = Job(16, factor=factors(16, {2: 5.0}))
    judge = Judge(thresholds=Thresholds(warmup_windows=2, windows_needed=1))
    assert [blamed(assessment) for assessment in assess(job, 2, judge)] == [[], []]
    job.factor = np.ones(16)
    assert not anybody(job, 3, judge)


def test_what_differs_in_the_warm_up_delays_no_verdict() -> None:
    job, judge = Job(8, factor=np.exp(np.random.default_rng(1).normal(0, 1, 8))), Judge()
    anybody(job, 1, judge)
    job.factor = factors(8, {3: 1.2})
    assert anybody(job, 2, judge) == {3}


def test_chips_that_agree_closely_make_no_straggler_of_one_three_percent_off() -> None:
    job = Job(8, noise=0.001, chip_spread=0.001, factor=factors(8, {3: 1.03}))
    assert not anybody(job, judge=Judge(thresholds=Thresholds(min_slowdown=1.01)))


def test_a_sign_of_one_window_does_not_take_the_place_of_one_that_lasts() -> None:
    job, judge = Job(16, section_factor={"forward": factors(16, {2: 2.0})}), Judge()
    assert anybody(job, 3, judge) == {2}
    job.factor = factors(16, {2: 2.0})
    assert [verdict.kind for verdict in last(job, 1, judge).verdicts] == [SECTION]
    assert [verdict.kind for verdict in last(job, 1, judge).verdicts] == [GPU]


def test_one_bad_window_is_not_enough() -> None:
    job, judge = Job(16), Judge()
    anybody(job, 2, judge)
    job.factor = factors(16, {2: 2.0})
    assert not anybody(job, 1, judge)
    job.factor = np.ones(16)
    assert not anybody(job, 2, judge)
    job.factor = factors(16, {2: 2.0})
    assert not anybody(job, 1, judge)
    assert anybody(job, 1, judge) == {2}


def test_a_rank_slow_against_its_past_is_found_among_ranks_of_other_work() -> None:
    """The last stage is not comparable without groups, but each of its ranks is with itself."""
    job, judge = stages(64, own=False), Judge()
    assert not anybody(job, 6, judge)
    job.factor[62] *= 1.3
    found = last(job, 2, judge)
    assert blamed(found) == [62]
    assert "in its own past, while comparable ranks stayed as they were" in found.verdicts[0].evidence
    assert found.gpu_slowdown_to_own_past[62] == pytest.approx(1.3, abs=0.05)


def test_a_fast_rank_that_becomes_like_the_others_is_not_blamed() -> None:
    job, judge = Job(32, factor=factors(32, {4: 0.6})), Judge()
    assert not anybody(job, 6, judge)
    job.factor = np.ones(32)
    assert not anybody(job, 4, judge)


def test_the_past_survives_a_save_and_a_restore() -> None:
    job, before = stages(64, own=False), Judge()
    assert not anybody(job, 6, before)
    saved = json.loads(json.dumps(before.save()))
    job.factor[62] *= 1.3
    after, forgetful = Judge(), Judge()
    after.restore(saved)
    assert anybody(job, 3, after) == {62}
    assert not anybody(job, 3, forgetful)


def test_a_slow_section_is_named() -> None:
    job = Job(32, section_factor={"data_loading": factors(32, {12: 3.5}), "step": factors(32, {12: 1.4})})
    found = last(job)
    assert blamed(found) == [12]
    verdict = found.verdicts[0]
    assert (verdict.kind, verdict.section) == (SECTION, "data_loading")
    assert "section data_loading takes 3." in verdict.evidence
    assert " times as long as on the median of 31 comparable ranks" in verdict.evidence
    assert found.section_slowdown["data_loading"][12] == pytest.approx(3.5, rel=0.15)


def test_a_section_that_costs_nothing_is_no_trouble() -> None:
    job, judge = Job(32, section_factor={"optimizer": factors(32, {12: 3.5})}), Judge()
    for _ in range(3):
        window = job.window()
        window.totals[:, job.kernels + job.sections.index("optimizer")] *= 1e-3
        assert not judge.add(window).verdicts


@pytest.mark.parametrize(
    ("step", "named"), [(0.5, []), (None, [12]), (0.01, [12]), (math.nan, [12])], ids=str
)
def test_a_section_is_measured_against_the_time_and_not_the_other_sections(
    step: float | None, named: list[int]
) -> None:
    """Only loading is wrapped, 2 ms; whether 0.8 ms more are trouble depends on how long the steps are."""
    job, judge = Job(16, kernels=0, sections=("data",), section_noise=0.01), Judge()
    job.section_factor["data"] = factors(16, {12: 1.4})
    for _ in range(5):
        whole = job.window()
        elapsed = None if step is None else np.full(16, step * 200)
        window = changed(whole, medians=whole.medians / 25, totals=whole.totals / 25, elapsed=elapsed)
        found = judge.add(window)
    assert blamed(found) == named
    assert found.section_slowdown["data"][12] == pytest.approx(1.4, rel=0.03)


def test_a_rank_that_does_not_know_the_time_changes_nothing() -> None:
    job, judge = Job(16, kernels=0, section_factor={"forward": factors(16, {12: 1.4})}), Judge()
    elapsed = np.full(16, 5 * 200 * 0.05)
    elapsed[::3] = np.nan
    assert [blamed(judge.add(changed(job.window(), elapsed=elapsed))) for _ in range(4)][-1] == [12]


def test_where_the_time_is_unknown_kernels_tell_how_long_the_steps_are() -> None:
    slow = factors(16, {12: 1.4})
    small = Job(16, kernels=100, sections=("data",), section_noise=0.01, section_factor={"data": slow})
    small.times *= 200 / small.times.sum()  # seconds a step, and 50 ms of loading
    assert not anybody(small)
    small.times *= 0.001
    assert anybody(small) == {12}


def test_four_ranks_are_enough_to_name_one() -> None:
    for seed in range(10):
        job = Job(4, seed, kernels=0, section_factor={"forward": factors(4, {1: 2.5})})
        assert blamed(last(job, 5)) == [1]
    assert not anybody(Job(2, kernels=0, section_factor={"forward": factors(2, {1: 2.5})}))


def late(ranks: int, who: int, by: float) -> np.ndarray:  # type: ignore[type-arg]
    result = np.zeros(ranks)
    result[who] = by
    return result


def test_the_late_rank_is_named_although_the_others_have_the_long_collectives() -> None:
    found = last(Job(16, collectives=3, late=late(16, 11, 0.02)))
    assert blamed(found) == [11]
    verdict = found.verdicts[0]
    assert verdict.kind == LATE
    assert verdict.slowdown > 1.1
    assert re.match(r"it arrives last at the collectives \(\d+ % of the time is lost", verdict.evidence)


def test_arrival_supports_the_verdict_on_a_gpu_and_speaks_against_one_who_waits() -> None:
    slow = factors(16, {11: 1.3})
    supported = last(Job(16, collectives=3, late=late(16, 11, 0.02), factor=slow)).verdicts[0]
    silent = last(Job(16, collectives=3, factor=slow)).verdicts[0]
    assert (supported.rank, supported.kind) == (silent.rank, silent.kind) == (11, GPU)
    assert "at the collectives the others wait " in supported.evidence
    assert supported.confidence > silent.confidence


def test_a_section_in_which_a_rank_only_waits_does_not_blame_it() -> None:
    """All but rank 0 are late; rank 0's long section is its waiting for them."""
    arrival = np.full(16, 0.02)
    arrival[0] = 0.0
    job = Job(16, collectives=3, late=arrival, section_factor={"backward": factors(16, {0: 1.6})})
    assert 0 not in anybody(job)


def test_a_hosts_losses_are_named_where_they_explain_the_section() -> None:
    job, judge = Job(16, section_factor={"forward": factors(16, {6: 1.8})}), Judge()
    for _ in range(3):
        window = job.window()
        pauses, steal = np.full(16, 0.1), np.full(16, 0.3)
        pauses[6] += 7.0  # of the 8 s that the section lost: 200 calls x 40 ms
        found = judge.add(replace(window, host_losses={"garbage collection": pauses, "CPU steal": steal}))
    verdict = found.verdicts[0]
    assert (verdict.rank, verdict.kind, verdict.section) == (6, HOST, "forward")
    assert verdict.evidence.startswith(
        "garbage collection took 7.0 s more of this window than on comparable ranks"
    )
    assert "of what section forward lost" in verdict.evidence


def test_losses_that_explain_little_of_the_section_leave_it_the_section() -> None:
    job, judge = Job(16, section_factor={"forward": factors(16, {6: 1.8})}), Judge()
    lost = np.zeros(16)
    lost[6] = 1.0  # of 8 s
    for _ in range(3):
        found = judge.add(replace(job.window(), host_losses={"garbage collection": lost}))
    assert [(verdict.rank, verdict.kind) for verdict in found.verdicts] == [(6, SECTION)]


def test_a_wait_for_a_cpu_must_last_through_all_windows() -> None:
    """Other programs come and go; meanwhile the section that was starved is not blamed either."""
    job, judge = Job(16, section_factor={"forward": factors(16, {6: 1.8})}), Judge()
    lost = np.zeros(16)
    lost[6] = 8.0
    told = [judge.add(replace(job.window(), host_losses={"waiting for a CPU": lost})) for _ in range(4)]
    assert [blamed(one) for one in told] == [[], [], [], [6]]
    assert told[-1].verdicts[0].kind == HOST
    assert "waiting for a CPU took 8.0 s more" in told[-1].verdicts[0].evidence


def test_where_every_host_loses_much_a_little_more_is_no_reason() -> None:
    job, judge = Job(16, section_factor={"forward": factors(16, {6: 1.8})}), Judge()
    lost = np.linspace(0, 40, 16)  # of some 50 s
    for _ in range(4):
        found = judge.add(replace(job.window(), host_losses={"garbage collection": lost}))
    assert [(verdict.rank, verdict.kind) for verdict in found.verdicts] == [(6, SECTION)]


def test_a_section_with_a_long_tail_is_noisy_by_itself() -> None:
    """A few long waits in each window: the mean is far above the median, and the median of so few times jumps."""
    for tail, soon in ((1, [1]), (4, [])):
        job = Job(4, kernels=0, section_noise=0.01, section_factor={"forward": factors(4, {1: 1.5})})
        judge = Judge()
        for _ in range(3):
            window = job.window()
            few = np.full_like(window.counts, 9)
            found = judge.add(changed(window, counts=few, totals=window.medians * few * tail))
        assert blamed(found) == soon


def test_a_late_ranks_section_is_named_where_it_explains_the_lateness() -> None:
    """The section is slow in its mean only, so that by itself it says nothing."""
    job, judge = Job(16, kernels=0, collectives=3, late=late(16, 11, 0.02)), Judge()
    for _ in range(3):
        window = job.window()
        window.totals[11, job.sections.index("data_loading")] += 3 * 200 * 0.02
        found = judge.add(window)
    (verdict,) = found.verdicts
    assert (verdict.rank, verdict.kind, verdict.section) == (11, SECTION, "data_loading")
    assert re.match(
        r"section data_loading takes 1\d\.\d s more of this window than on the median of 15 comparable ranks, and so "
        r"it arrives late at the collectives \(1\d\.\d s\), in 2 of the last 2 windows",
        verdict.evidence,
    )


def test_rare_long_pauses_show_in_the_mean_and_are_named() -> None:
    job, judge = Job(16), Judge()
    for _ in range(3):
        window = job.window()
        window.totals[6, job.kernels + 1] += 5.0
        lost = np.zeros(16)
        lost[6] = 5.0
        found = judge.add(replace(window, host_losses={"garbage collection": lost}))
    assert [(verdict.rank, verdict.kind) for verdict in found.verdicts] == [(6, HOST)]


def test_losses_that_explain_nothing_blame_nobody() -> None:
    job, judge = Job(16), Judge()
    lost = np.zeros(16)
    lost[3] = 5.0
    assert not any(
        judge.add(replace(job.window(), host_losses={"CPU steal": lost})).verdicts for _ in range(4)
    )


def test_ranks_of_one_node_point_to_the_node() -> None:
    found = last(Job(128, factor=factors(128, dict.fromkeys(range(16, 24), 1.3))))
    assert blamed(found) == list(range(16, 24))
    assert found.verdicts[0].evidence.endswith("; the same holds for 8 of the 8 ranks of this node")


def test_thresholds_can_change_at_run_time() -> None:
    job, judge = Job(32, noise=0.02, factor=factors(32, {4: 1.12})), Judge()
    judge.thresholds = Thresholds(min_slowdown=1.5)
    assert not anybody(job, 4, judge)
    judge.thresholds = Thresholds(min_slowdown=1.05)
    assert anybody(job, 2, judge) == {4}


def test_a_section_called_gpu_is_not_the_gpu() -> None:
    job = Job(16, sections=("gpu", "step"), section_factor={"gpu": factors(16, {2: 2.0})})
    assert [(verdict.rank, verdict.kind) for verdict in last(job).verdicts] == [(2, SECTION)]
