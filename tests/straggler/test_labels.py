"""Which ranks do the same work, from what users have: labels, functions, meshes, Megatron."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.straggler.labels import GroupsError, different_work, labels_of, own_label
from tests.processes import Spawner
from tests.straggler.jobs import printed, start

STATE = "megatron.core.parallel_state"


DIFFERENT = (
    "pp PP pp_stage pipe pipeline pipeline_parallel pipeline-parallel stage Stages stage_0 ep EP expert experts",
    "expert_parallel ExpertParallel pp_dp dp_shard_in_ep",
)
ALIKE = (
    "dp dp_replicate dp_shard dp_shard_cp dp_shard_mod_ep fsdp hsdp cfsdp tp TP cp sp etp efsdp edp batch",
    "expert_data_parallel expert_tensor_parallel data tensor epoch loss shipping apple",
)


@pytest.mark.parametrize("name", " ".join(DIFFERENT).split())
def test_dimensions_of_different_work(name: str) -> None:
    assert different_work(name)


@pytest.mark.parametrize("name", " ".join(ALIKE).split())
def test_dimensions_of_the_same_work(name: str) -> None:
    assert not different_work(name)


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
        labels_of("megatron", range(8), ["pp 0", *[""] * 7][:7])
    with pytest.raises(GroupsError, match=r"but rank 4 had no"):
        labels_of("megatron", [3, 4], ["pp 0"])


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
def test_meshes_of_real_ranks(spawn: Spawner, tmp_path: Path) -> None:
    two, three, flat, whole, of_its_ranks, of_a_group, part, unnamed = printed(
        start(spawn, tmp_path, "meshes.py", 4)
    )[0]
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


@pytest.mark.slow
def test_stages_of_megatron(spawn: Spawner, tmp_path: Path) -> None:
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed: pip install --no-deps megatron-core")
    ((before, refused, after, found),) = printed(start(spawn, tmp_path, "megatron_stages.py", 4))[0]
    assert before is None and after == "pp 0, ep 0"
    assert refused[0] == [""] * 4
    assert refused[1][0].startswith("groups='megatron', but ranks 0, 1, 2, 3 had no Megatron parallel state")
    assert found == [["pp 0, ep 0"] * 2 + ["pp 1, ep 0"] * 2, COMPARED_WITH_NO_OTHER]
