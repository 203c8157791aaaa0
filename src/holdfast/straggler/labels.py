"""Labels of ranks, whichever way they are given: equal labels, equal work. Only such ranks are compared.

They are given as one label for each rank, as a function, as a `DeviceMesh`, or as `"megatron"`. What always holds:
nothing is loaded that is not loaded already, since who passes a mesh or uses Megatron has loaded torch or Megatron.
A virtual pipeline needs no label of its own: in each step a rank runs all of its chunks, which its stage says already.
Does not cover: work that differs between ranks of one label, as sequences of different lengths do.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    Groups: TypeAlias = Sequence[Hashable] | Callable[[int], Hashable] | DeviceMesh
    """What `Detector.initialize` takes; the text `"megatron"` is one of the sequences."""

Given: TypeAlias = Sequence[Hashable] | Mapping[int, Hashable] | Callable[[int], Hashable]
"""What `checked` makes of it; the mapping has the global ranks of a mesh."""

MEGATRON = "megatron"
_MOST_CHARACTERS = 100
_STAGE = re.compile(r"pp\d*|(pipe|stage)[a-z]*\d*")
_EXPERT = re.compile(r"ep\d*|expert[a-z]*\d*")
_ALIKE = re.compile(r"(dp|tp|cp|sp|data|tensor|context|sequence|replicate|shard|fsdp|hsdp|mod)\d*")
_SHARDS_OF_EXPERTS = "dp_shard_in_ep"  # torchtitan's name: with cp and tp it makes the dimension ep


class GroupsError(ValueError):
    """The groups do not fit the ranks, and what to pass instead, as a whole sentence."""


def different_work(dimension: str) -> bool:
    """Whether ranks that differ in this dimension of a mesh do different work: stages of a pipeline, and experts."""
    words = re.split(r"[^a-z0-9]+", dimension.lower())
    if any(_STAGE.fullmatch(word) for word in words):
        return True
    # As in expert_data_parallel: copies of the same experts.
    if any(_ALIKE.fullmatch(word) for word in words):
        return dimension.lower() == _SHARDS_OF_EXPERTS
    return any(_EXPERT.fullmatch(word) for word in words)


def checked(groups: object, process_group: Any = None) -> Given | None:
    """Groups as later calls take them.

    Raises:
        GroupsError: they are no groups, or a mesh has no names or not all ranks of the process group.
    """
    mesh = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    if mesh is not None and isinstance(groups, mesh):
        return _of_mesh(groups, process_group)
    if groups is None or callable(groups) or (isinstance(groups, str) and groups == MEGATRON):
        return groups
    if (
        not isinstance(groups, Sequence)
        or isinstance(groups, (str, bytes))
        or not all(isinstance(label, Hashable) for label in groups)
    ):
        raise GroupsError(
            "Detector.initialize: groups must be one label for each rank, a function from rank to label, a DeviceMesh, "
            f"'megatron', or None, not {groups!r}"
        )
    return tuple(groups)


def own_label(groups: Given | None) -> str | None:
    """This rank's label where no other rank can know it, for telling rank 0: at most 100 characters. Never raises.

    Returns:
        With `"megatron"` the stage of the pipeline and the rank among the experts, `"pp 1, ep 0"`; None where
        Megatron's parallel state is not initialised, and for all other groups.
    """
    state = _parallel_state() if isinstance(groups, str) and groups == MEGATRON else None
    if state is None:
        return None
    try:
        if not state.model_parallel_is_initialized():
            return None
        label = f"pp {state.get_pipeline_model_parallel_rank()}"
    except Exception:  # a Megatron that we do not know: rank 0 says that the label is missing
        return None
    with contextlib.suppress(Exception):  # a Megatron without experts
        label += f", ep {state.get_expert_model_parallel_rank()}"
    return label[:_MOST_CHARACTERS]


def labels_of(
    groups: Given | None, ranks: Sequence[int], told: Sequence[str] = ()
) -> Sequence[Hashable] | None:
    """The label of each rank; None if the groups are to be found.

    Args:
        groups: what `checked` gave.
        ranks: the global ranks that are compared, in order.
        told: what `own_label` gave on each of them, empty for None.

    Raises:
        GroupsError: some rank has no label, or the function raised.
    """
    if groups is None:
        return None
    if callable(groups):
        return [_label(groups, rank) for rank in ranks]
    if isinstance(groups, Mapping):
        return [groups[rank] for rank in ranks]
    if isinstance(groups, str):
        return _all_told(ranks, told)
    if len(groups) != len(ranks):
        raise GroupsError(f"groups has {len(groups)} labels for {len(ranks)} ranks: give one for each rank")
    return groups


def _of_mesh(mesh: Any, process_group: Any) -> dict[int, tuple[int, ...]]:
    """For each rank of a mesh its coordinates in the dimensions of different work."""
    names = mesh.mesh_dim_names
    if not names:
        raise GroupsError(
            "Detector.initialize: the dimensions of the DeviceMesh in groups have no names: pass mesh_dim_names to "
            "init_device_mesh, or pass one label for each rank"
        )
    kept = [number for number, name in enumerate(names) if different_work(name)]
    places = itertools.product(*map(range, mesh.mesh.shape))
    found: dict[int, tuple[int, ...]] = {
        rank: tuple(place[number] for number in kept)
        for place, rank in zip(places, mesh.mesh.flatten().tolist(), strict=True)
    }
    dist: Any = sys.modules["torch.distributed"]
    compared = (
        range(dist.get_world_size()) if process_group is None else dist.get_process_group_ranks(process_group)
    )
    missing = [rank for rank in compared if rank not in found]
    if missing:
        raise GroupsError(
            f"Detector.initialize: the DeviceMesh in groups ({', '.join(names)}) has no {_named(missing)}: pass the "
            "mesh of the whole job rather than a part of it, or compare fewer ranks with process_group"
        )
    return found


def _parallel_state() -> Any:
    """Megatron's, if it is loaded."""
    return sys.modules.get("megatron.core.parallel_state")


def _all_told(ranks: Sequence[int], told: Sequence[str]) -> Sequence[str]:
    missing = [*ranks[len(told) :], *(rank for rank, label in zip(ranks, told, strict=False) if not label)]
    if missing:
        raise GroupsError(
            f"groups='megatron', but {_named(missing)} had no Megatron parallel state at the first report: call "
            "initialize_model_parallel() before it, or pass one label for each rank"
        )
    return told


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:5])) + (f" and {len(ranks) - 5} more" if len(ranks) > 5 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def _label(groups: Callable[[int], Hashable], rank: int) -> Hashable:
    try:
        return groups(rank)
    except Exception as error:
        raise GroupsError(
            f"the function groups= failed for rank {rank}: {type(error).__name__}: {error}"
        ) from error
