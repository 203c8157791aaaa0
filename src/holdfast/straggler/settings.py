"""The arguments of `Detector.initialize`: checked on this rank, and compared with those of the other ranks.

No numpy is imported here: ranks other than rank 0 need not load it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeGuard

log = logging.getLogger("holdfast.straggler")

RELATIVE = "relative_perf_scores"
INDIVIDUAL = "individual_perf_scores"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What it takes to be named. ValueError for a value outside its range.

    Does not cover: standing differences between healthy chips above `min_slowdown`; raise it there.
    """

    min_slowdown: float = 1.10
    """Time over that of the others, greater than 1. Healthy chips spread by 1–2 %: of 16,384 the slowest is at 1.08."""
    min_cost_share: float = 0.05
    """A signal counts only if it is this share of the summed signals of its rank, in [0, 1)."""
    error_rate: float = 1e-3
    """Chance of a false name in one report, all ranks and signals together, in (0, 0.1]."""
    noise_floor: float = 0.005
    """The least standard deviation between windows that is believed, as a share of the time, in [0, 1]."""
    min_ranks: int = 3
    """Fewer ranks that do the same work have no majority; 3 or more."""
    min_samples: int = 3
    """Runs of a section or kernel in a report before its time counts; 1 or more. `find_stragglers` does not use it."""
    warmup_windows: int = 1
    """Reports at the start that count for nothing: compilation, allocators, cold caches; 0 or more. Nor this."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value, (allowed, lowest, highest) = getattr(self, one.name), _ALLOWED[one.name]
            number = isinstance(value, int if one.type == "int" else (int, float)) and not isinstance(
                value, bool
            )
            if not (number and lowest <= value <= highest):
                raise ValueError(f"straggler thresholds: {one.name} is {value!r}; allowed: {allowed}")


_ALLOWED = {
    "min_slowdown": ("greater than 1", math.nextafter(1, 2), 1e6),
    "min_cost_share": ("from 0 to below 1", 0, math.nextafter(1, 0)),
    "error_rate": ("greater than 0, at most 0.1", 1e-12, 0.1),
    "noise_floor": ("from 0 to 1", 0, 1),
    "min_ranks": ("a whole number from 3 on", 3, math.inf),
    "min_samples": ("a whole number from 1 on", 1, math.inf),
    "warmup_windows": ("a whole number from 0 on", 0, math.inf),
}


@dataclass(kw_only=True)
class Settings:
    """The arguments of `Detector.initialize`, under the same names. ValueError for one that is not what is allowed."""

    scores_to_compute: Sequence[str] | str = "all"
    gather_on_rank0: bool = True
    profiling_interval: int = 1
    report_time_interval: float = 60
    node_name: str
    process_group: Any = None
    groups: Any = None
    """As `labels.checked` gave them."""
    thresholds: Thresholds | None = None
    background: bool = False
    run_dir: str | None = None
    state_file: str | None = None
    max_profiled_sections: int | None = None

    def __post_init__(self) -> None:
        names: Any = self.scores_to_compute
        names = (RELATIVE, INDIVIDUAL) if names == "all" else (names,) if isinstance(names, str) else names
        known = isinstance(names, Sequence) and names and all(one in (RELATIVE, INDIVIDUAL) for one in names)
        self._check("scores_to_compute", bool(known), f"'all' or a list of {RELATIVE!r} and {INDIVIDUAL!r}")
        self.relative, self.individual = RELATIVE in names, INDIVIDUAL in names
        self.scores_to_compute = "all" if self.relative and self.individual else names[0]
        for name in ("gather_on_rank0", "background"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        self._check("profiling_interval", _is_positive(self.profiling_interval), "a whole number from 1 on")
        most = self.max_profiled_sections
        self._check(
            "max_profiled_sections",
            most is None or _is_positive(most),
            "a whole number from 1 on, or None for all",
        )
        seconds = self.report_time_interval
        allowed = is_number(seconds) and 0 <= seconds < math.inf
        self._check("report_time_interval", allowed, "seconds from 0 on")
        self.report_time_interval = float(seconds)
        allowed = isinstance(self.node_name, str) and bool(self.node_name)
        self._check("node_name", allowed, "a non-empty text, or None for the host's name")
        for name in ("run_dir", "state_file"):
            path: object = getattr(self, name)
            is_path = isinstance(path, str) and bool(path.strip()) and "\0" not in path
            self._check(name, path is None or is_path, "a path, or None")
        if self.thresholds is not None:
            checked_thresholds(self.thresholds, "initialize")

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ValueError(f"Detector.initialize: {name} must be {allowed}, not {getattr(self, name)!r}")


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
    names = (
        "scores_to_compute",
        "gather_on_rank0",
        "profiling_interval",
        "report_time_interval",
        "background",
        "max_profiled_sections",
    )
    found = {name: getattr(settings, name) for name in names}
    thresholds = asdict(settings.thresholds or Thresholds())
    found |= {f"thresholds.{name}": value for name, value in thresholds.items()}
    return {name: repr(value) for name, value in found.items()}
