"""Which ranks are compared."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.straggler.groups import FoundGroups, from_presence, members_of
from holdfast.straggler.judge import Judge

from .simulation import Job, changed


def stages(ranks: int, count: int, common: int = 60, own: int = 6) -> np.ndarray:  # type: ignore[type-arg]
    """Presence of ranks in `count` pipeline stages side by side, with `own` kernels that only one stage has."""
    present = np.zeros((ranks, common + own * count), dtype=bool)
    present[:, :common] = True
    for rank in range(ranks):
        first = common + own * (rank * count // ranks)
        present[rank, first : first + own] = True
    return present


def partition(codes: np.ndarray) -> list[list[int]]:  # type: ignore[type-arg]
    return [members.tolist() for members in members_of(codes)]


@pytest.mark.parametrize("missing", [0.001, 0.01, 0.03])
def test_keys_missing_by_chance_change_no_group(missing: float) -> None:
    present = stages(512, 4, common=480, own=20)
    rng = np.random.default_rng(3)
    present &= rng.random(present.shape) >= missing
    assert partition(from_presence(present, 3)) == [list(range(n, n + 128)) for n in range(0, 512, 128)]


def test_all_alike_and_nothing_alike_are_one_group() -> None:
    assert set(from_presence(np.ones((8, 5), dtype=bool), 3).tolist()) == {0}
    assert set(from_presence(np.eye(8, dtype=bool), 3).tolist()) == {0}
    assert from_presence(np.ones((0, 5), dtype=bool), 3).tolist() == []


def test_what_a_rank_once_had_counts_for_good() -> None:
    found, job = FoundGroups(3), Job(16, kernels=40)
    whole = job.window()
    first = found.update(whole)
    gap = whole.medians.copy()
    gap[8:, :20] = np.nan  # half of the kernels were not sampled on half of the ranks
    assert found.update(changed(whole, medians=gap)).tolist() == first.tolist()


def test_groups_are_kept_when_keys_come_and_go() -> None:
    found, job = FoundGroups(3), Job(16, kernels=40)
    window = job.window()
    medians = window.medians.copy()
    medians[8:, :20] = np.nan
    split = found.update(changed(window, medians=medians))
    assert partition(split) == [list(range(8)), list(range(8, 16))]
    renamed = [key if number < 30 else f"new {key}" for number, key in enumerate(window.keys)]
    assert found.update(changed(window, medians=medians, keys=renamed)).tolist() == split.tolist()


def test_labels_must_fit_the_ranks() -> None:
    with pytest.raises(ValueError, match=r"^straggler groups: 7 labels for 8 ranks; give one for each rank$"):
        Judge(groups=[0] * 7).add(Job(8).window())


def test_a_new_key_and_a_gap_in_one_window_split_nobody_off() -> None:
    found, job = FoundGroups(3), Job(16, kernels=40)
    window = job.window()
    medians = window.medians.copy()
    medians[:, 0] = np.nan
    first = found.update(changed(window, medians=medians))
    gap = window.medians.copy()  # the first kernel appears, others were not sampled on half of the ranks
    gap[8:, 10:30] = np.nan
    assert found.update(changed(window, medians=gap)).tolist() == first.tolist()
