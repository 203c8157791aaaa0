"""The arguments of `Detector.initialize`: checked on this rank, and compared with those of the other ranks."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

from .thresholds import Thresholds

log = logging.getLogger("holdfast.straggler")

RELATIVE = "relative_perf_scores"
INDIVIDUAL = "individual_perf_scores"


@dataclass(frozen=True)
class Settings:
    """`relative`, `individual`: the scores to compute. `report_time_interval` is in seconds."""

    relative: bool
    individual: bool
    gather_on_rank0: bool
    profiling_interval: int
    report_time_interval: float
    node_name: str
    process_group: Any
    groups: Any = None
    thresholds: Thresholds | None = None
    background: bool = False
    run_dir: str | None = None
    state_file: str | None = None
    max_profiled_sections: int | None = None


def scores(asked: object) -> tuple[bool, bool]:
    """Whether relative and individual scores are asked for; ValueError if something else is."""
    names: object = [RELATIVE, INDIVIDUAL] if asked == "all" else [asked] if isinstance(asked, str) else asked
    if (
        not isinstance(names, Sequence)
        or not names
        or not all(one in (RELATIVE, INDIVIDUAL) for one in names)
    ):
        raise ValueError(
            f"Detector.initialize: scores_to_compute must be 'all' or a list of {RELATIVE!r} and {INDIVIDUAL!r}, "
            f"not {asked!r}"
        )
    return RELATIVE in names, INDIVIDUAL in names


def checked(
    scores_to_compute: object,
    gather_on_rank0: object,
    profiling_interval: object,
    report_time_interval: object,
    node_name: object,
    process_group: object,
    groups: object = None,
    thresholds: object = None,
    background: object = False,
    run_dir: object = None,
    state_file: object = None,
    max_profiled_sections: object = None,
) -> Settings:
    """The settings; ValueError with the argument, its value and what is allowed."""
    relative, individual = scores(scores_to_compute)
    if not isinstance(gather_on_rank0, bool):
        raise _wrong("gather_on_rank0", "True or False", gather_on_rank0)
    if not _is_positive(profiling_interval):
        raise _wrong("profiling_interval", "a whole number from 1 on", profiling_interval)
    if max_profiled_sections is not None and not _is_positive(max_profiled_sections):
        raise _wrong(
            "max_profiled_sections", "a whole number from 1 on, or None for all", max_profiled_sections
        )
    if not is_number(report_time_interval) or not 0 <= report_time_interval < math.inf:
        raise _wrong("report_time_interval", "seconds from 0 on", report_time_interval)
    if not isinstance(node_name, str) or not node_name:
        raise _wrong("node_name", "a non-empty text, or None for the host's name", node_name)
    if not isinstance(background, bool):
        raise _wrong("background", "True or False", background)
    return Settings(
        relative,
        individual,
        gather_on_rank0,
        profiling_interval,
        float(report_time_interval),
        node_name,
        process_group,
        groups,
        None if thresholds is None else checked_thresholds(thresholds, "initialize"),
        background,
        _path("run_dir", run_dir),
        _path("state_file", state_file),
        max_profiled_sections,
    )


def _path(name: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip() or "\0" in value):
        raise _wrong(name, "a path, or None", value)
    return value


def checked_thresholds(thresholds: object, call: str) -> Thresholds:
    """The thresholds; ValueError for anything else."""
    if not isinstance(thresholds, Thresholds):
        raise ValueError(f"Detector.{call}: thresholds must be straggler.Thresholds(...), not {thresholds!r}")
    return thresholds


def _is_positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_number(value: object) -> TypeGuard[float]:
    """A number, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong(name: str, allowed: str, value: object) -> ValueError:
    return ValueError(f"Detector.initialize: {name} must be {allowed}, not {value!r}")


# -- other ranks ---------------------------------------------------------------------------------------------------

_compared: Counter[tuple[int, ...]] = Counter()
"""How often the settings of each set of ranks were compared: the same on all of them."""


def compare(settings: Settings) -> bool:
    """Compare the settings with those of the first rank that came here, and log what differs.

    It uses the store of the default process group, waits for no rank and never raises.

    Returns:
        Whether there was a process group whose ranks can be compared.

    Does not cover: ranks that have initialised the detector differently often. `groups`, `node_name`, `run_dir` and
    `state_file`, which may differ.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return False
    try:
        _compare(settings, dist)
    except Exception as error:  # a store of another kind
        log.debug("the settings of the straggler detector were not compared between ranks: %r", error)
    return True


def _compare(settings: Settings, dist: Any) -> None:
    group = settings.process_group
    ranks = tuple(range(dist.get_world_size()) if group is None else dist.get_process_group_ranks(group))
    _compared[ranks] += 1
    digest = hashlib.blake2b(repr(ranks).encode(), digest_size=8).hexdigest()
    key = f"holdfast/straggler/settings/{digest}/{_compared[ranks]}"
    here, own = dist.get_rank(), _common(settings)
    first = dist.distributed_c10d._get_default_store().compare_set(key, "", json.dumps([here, own]))
    there, other = json.loads(first)
    different = [
        f"{name} is {own.get(name)} on rank {here} and {other.get(name)} on rank {there}"
        for name in own
        if own[name] != other.get(name)
    ]
    if different:
        log.warning(
            "Detector.initialize: settings differ between ranks: %s. Initialize all ranks alike: reports may be wrong, "
            "or wait for a rank that does not take part",
            "; ".join(different),
        )


def _common(settings: Settings) -> dict[str, str]:
    """What must be the same on all ranks, as people write it."""
    scores = [
        name for name, asked in ((RELATIVE, settings.relative), (INDIVIDUAL, settings.individual)) if asked
    ]
    names = (
        "gather_on_rank0",
        "profiling_interval",
        "report_time_interval",
        "background",
        "max_profiled_sections",
    )
    found: dict[str, object] = {"scores_to_compute": "all" if len(scores) == 2 else scores[0]}
    found |= {name: getattr(settings, name) for name in names}
    thresholds = asdict(settings.thresholds or Thresholds())
    found |= {f"thresholds.{name}": value for name, value in thresholds.items()}
    return {name: repr(value) for name, value in found.items()}
