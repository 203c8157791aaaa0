"""What the judge compares: labels and groups of ranks, the level of a GPU, and each rank's own past."""

from __future__ import annotations

import importlib.util
import math
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from holdfast.straggler.groups import Baseline, FoundGroups, from_presence, members_of
from holdfast.straggler.labels import GroupsError, different_work, labels_of, own_label
from holdfast.straggler.window import (
    MAX_SAMPLE,
    Window,
    _weights,
    gpu_levels,
    reference_of,
    sample_of,
    sample_size,
)
from tests.processes import Spawner
from tests.straggler.jobs import printed, start

from .simulation import Job, changed, factors

STATE = "megatron.core.parallel_state"


DIFFERENT = (
    "pp PP pp_stage pipe pipeline pipeline_parallel pipeline-parallel stage Stages stage_0 ep EP expert experts",
    "expert_parallel ExpertParallel pp_dp dp_shard_in_ep",
)
ALIKE = (
    "dp dp_replicate dp_shard dp_shard_cp dp_shard_mod_ep fsdp hsdp cfsdp tp TP cp sp etp efsdp edp batch",
    "expert_data_parallel expert_tensor_parallel data tensor epoch loss shipping apple",
)


def test_dimensions_of_different_work() -> None:
    assert [name for name in " ".join(DIFFERENT).split() if not different_work(name)] == []
    assert [name for name in " ".join(ALIKE).split() if different_work(name)] == []


def test_labels_of_each_rank() -> None:
    assert labels_of(None, [0, 1]) is None
    assert labels_of(("a", "b"), [7, 5]) == ("a", "b")
    assert labels_of(lambda rank: rank // 4, [7, 3]) == [1, 0]
    assert labels_of({5: (0,), 7: (1,), 9: (1,)}, [7, 5]) == [(1,), (0,)]
    assert labels_of("megatron", [0, 1], ["pp 0", "pp 1"]) == ["pp 0", "pp 1"]


def test_labels_that_do_not_fit_say_what_to_do() -> None:
    with pytest.raises(GroupsError, match=r"^groups has 3 labels for 2 ranks: give one for each rank$"):
        labels_of(("a", "b", "c"), [0, 1])
    text = (
        r"^groups='megatron', but ranks 1, 2, 3, 4, 5 and 2 more had no Megatron parallel state at the first report: "
        r"call initialize_model_parallel\(\) before it, or pass one label for each rank$"
    )
    with pytest.raises(GroupsError, match=text):
        labels_of("megatron", range(8), ["pp 0", *[""] * 7])
    with pytest.raises(GroupsError, match=r"but rank 4 had no"):
        labels_of("megatron", [3, 4], ["pp 0", ""])


def test_a_label_is_short_and_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ModuleType(STATE)
    monkeypatch.setitem(sys.modules, STATE, state)
    assert own_label("megatron") is None  # no function that we know
    state.model_parallel_is_initialized = lambda: False  # type: ignore[attr-defined]
    state.get_pipeline_model_parallel_rank = lambda: 3  # type: ignore[attr-defined]
    assert own_label("megatron") is None
    state.model_parallel_is_initialized = lambda: True  # type: ignore[attr-defined]
    assert own_label("megatron") == "pp 3"
    state.get_expert_model_parallel_rank = lambda: 1 // 0  # type: ignore[attr-defined]
    assert own_label("megatron") == "pp 3"
    state.get_expert_model_parallel_rank = lambda: 5  # type: ignore[attr-defined]
    assert own_label("megatron") == "pp 3, ep 5"
    assert own_label(("megatron",)) is None and own_label(None) is None
    state.get_pipeline_model_parallel_rank = lambda: "x" * 1000  # type: ignore[attr-defined]
    assert len(own_label("megatron") or "") == 100


COMPARED_WITH_NO_OTHER = [
    "4 of 4 ranks are compared with no other: there must be 3 ranks that do the same work"
]
TOO_FEW_RUNS = [
    "4 of 4 ranks that were looked at ran no section or kernel 3 times in this report: report more rarely, or measure "
    "more runs"
]


@pytest.mark.slow
def test_meshes_and_stages_of_real_ranks(spawn: Spawner, tmp_path: Path) -> None:
    (told,) = printed(start(spawn, tmp_path, "groups.py", 4))[0]
    two, three, flat, whole, of_its_ranks, of_a_group, part, unnamed, *megatron = told
    assert two == whole == [[[0], [0], [1], [1]], COMPARED_WITH_NO_OTHER]
    assert three == [[[0, 0], [0, 1], [0, 0], [0, 1]], COMPARED_WITH_NO_OTHER]
    assert flat == [[[]] * 4, TOO_FEW_RUNS]
    assert of_its_ranks[0] == [[], []]
    assert of_a_group[0] == [[0], [1]]
    assert part == (
        "Detector.initialize: the DeviceMesh in groups (dp_shard) has no ranks 2, 3: pass the mesh of the whole job "
        "rather than a part of it, or compare fewer ranks with process_group"
    )
    assert unnamed == (
        "Detector.initialize: the dimensions of the DeviceMesh in groups have no names: pass mesh_dim_names to "
        "init_device_mesh, or pass one label for each rank"
    )
    if importlib.util.find_spec("megatron") is None:
        pytest.skip(
            "the meshes are right; megatron-core is not installed: pip install --no-deps megatron-core"
        )
    ((before, refused, after, found),) = megatron
    assert before is None and after == "pp 0, ep 0"
    assert refused[0] == [""] * 4
    assert refused[1][0].startswith("groups='megatron', but ranks 0, 1, 2, 3 had no Megatron parallel state")
    assert found == [["pp 0, ep 0"] * 2 + ["pp 1, ep 0"] * 2, COMPARED_WITH_NO_OTHER]


# -- what the judge compares: groups of ranks, the level of a GPU, and each rank's own past; with values


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


def test_keys_missing_by_chance_change_no_group() -> None:
    present = stages(512, 4, common=480, own=20)
    rng = np.random.default_rng(3)
    present &= rng.random(present.shape) >= 0.03
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


def test_a_new_key_and_a_gap_in_one_window_split_nobody_off() -> None:
    found, job = FoundGroups(3), Job(16, kernels=40)
    window = job.window()
    medians = window.medians.copy()
    medians[:, 0] = np.nan
    first = found.update(changed(window, medians=medians))
    gap = window.medians.copy()  # the first kernel appears, others were not sampled on half of the ranks
    gap[8:, 10:30] = np.nan
    assert found.update(changed(window, medians=gap)).tolist() == first.tolist()


# -- the level of a GPU, with values


def levels(window: Window) -> np.ndarray:  # type: ignore[type-arg]
    reference = reference_of(window, np.arange(window.ranks), slice(0, 40), slice(0, 0), 3, 3)
    return gpu_levels(window, np.arange(window.ranks), slice(0, 40), reference, 3, 3)


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


# -- each rank against its own past, with levels given directly


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


def test_a_rank_on_another_node_starts_anew() -> None:
    saved = Baseline()
    feed(saved, 9.0, 1.0, 1.0, 1.0)
    after = Baseline(warmup_windows=0)
    after.restore(NODES, saved.levels)
    excess = after.update({"gpu": np.ones(RANKS)}, ALL, [*NODES[:4], "spare", "spare"])["gpu"]
    assert np.isnan(excess).tolist() == [False] * 4 + [True] * 2
    assert np.isnan(after.update({"gpu": np.ones(2)}, [np.arange(2)], ["a", "b"])["gpu"]).all()


@pytest.mark.parametrize(
    ("now", "stale"), [(0.06, -0.5), *product([0.06, 0.3], [-3.0, 3.0, math.inf, math.nan, 3e38])]
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
