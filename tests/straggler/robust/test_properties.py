"""What holds for any window: units, the order of ranks and missing values change no verdict."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.straggler.robust import Assessment, Judge, Thresholds, Window

from .simulation import Job, blamed, changed, factors

AT_ONCE = Thresholds(warmup_windows=0, windows_needed=1, windows_kept=1)

jobs = st.builds(
    lambda ranks, seed, slow, by: Job(
        ranks, seed, kernels=30, collectives=2, factor=factors(ranks, {slow % ranks: by})
    ),
    ranks=st.integers(4, 40),
    seed=st.integers(0, 2**32 - 1),
    slow=st.integers(0, 1000),
    by=st.sampled_from([0.5, 1.0, 1.05, 1.3, 2.0, 10.0]),
)


def judged(window: Window) -> Assessment:
    return Judge(thresholds=AT_ONCE).add(window)


@settings(max_examples=40)
@given(jobs, st.floats(1e-6, 1e6))
def test_the_unit_of_time_does_not_matter(job: Job, scale: float) -> None:
    window = job.window()
    medians = window.medians.astype(float)
    one = judged(changed(window, medians=medians))
    other = judged(changed(window, medians=medians * scale, totals=window.totals * scale))
    np.testing.assert_allclose(one.gpu_slowdown, other.gpu_slowdown, rtol=1e-4)
    assert [(verdict.rank, verdict.kind) for verdict in one.verdicts] == [
        (verdict.rank, verdict.kind) for verdict in other.verdicts
    ]


@settings(max_examples=40)
@given(jobs, st.randoms(use_true_random=False))
def test_the_order_of_ranks_does_not_matter(job: Job, random: np.random.Generator) -> None:
    window = job.window()
    order = list(range(window.ranks))
    random.shuffle(order)
    shuffled = changed(
        window,
        nodes=[window.nodes[rank] for rank in order],
        medians=window.medians[order],
        totals=window.totals[order],
        counts=window.counts[order],
    )
    one, other = judged(window), judged(shuffled)
    np.testing.assert_allclose(one.gpu_slowdown[order], other.gpu_slowdown, rtol=1e-5)
    assert blamed(one) == sorted(order[rank] for rank in blamed(other))


@settings(max_examples=40)
@given(jobs, st.data())
def test_missing_values_blame_nobody(job: Job, data: st.DataObject) -> None:
    """Cells that a healthy job did not measure put nobody in doubt, and whoever measured nothing has no verdict."""
    job.factor = np.ones(job.ranks)
    window = job.window()
    share = data.draw(st.floats(0, 1))
    gaps = np.random.default_rng(job.seed).random(window.medians.shape) < share
    silent = data.draw(st.integers(0, job.ranks - 1))
    gaps[silent] = True
    medians = np.where(gaps, np.nan, window.medians)
    found = judged(changed(window, medians=medians))
    assert silent not in blamed(found)
    assert np.isnan(found.gpu_slowdown[silent])
    assert not [verdict for verdict in found.verdicts if verdict.kind == "GPU"]


@settings(max_examples=40)
@given(jobs, st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0]))
def test_nonsense_from_one_rank_is_that_ranks_silence(job: Job, nonsense: float) -> None:
    window = job.window()
    medians = window.medians.copy()
    medians[1] = nonsense
    found = judged(changed(window, medians=medians))
    assert 1 not in blamed(found)
    assert np.isfinite(np.delete(found.gpu_slowdown, 1)).all()
