"""The robust verdicts of a job, window after window: measure, keep what lasts, and say it.

    judge = Judge()
    assessment = judge.add(window)      # once per report
    for verdict in assessment.verdicts: print(verdict)

Always holds: no clock, no file, no other process; the same windows give the same verdicts.

Does not cover: a job of fewer ranks than `min_ranks` per group, where nobody can be the odd one out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .baseline import Baseline
from .evidence import verdicts_of
from .groups import Codes, FoundGroups, from_labels
from .measure import GPU_LEVEL, GPU_SPREAD, SECTION_SPREAD, Measure, Measured, Rules, measure, section_key
from .persistence import Persistence
from .pooled import Pools
from .signs import Cause, signs_of
from .spreads import Spreads
from .thresholds import Thresholds
from .verdict import Verdict
from .window import Array, Window


@dataclass(frozen=True)
class Assessment:
    """What one window says. Arrays are [ranks], NaN where a rank could not be compared."""

    verdicts: tuple[Verdict, ...]
    """Slowest first; empty while the job is warming up or nothing has lasted long enough."""
    withheld: tuple[str, ...]
    """Why nobody was blamed although ranks were slow, a sentence each."""
    warming_up: bool
    measured: Measured
    past: Mapping[str, Measure]
    """Levels against the own past, by name."""

    @property
    def groups(self) -> Codes:
        """The number of each rank's group."""
        return self.measured.codes

    @property
    def gpu_slowdown(self) -> Array:
        """Time of the kernels over the group's reference; 1 is the median rank."""
        return _slowdown(self.measured.gpu)

    @property
    def gpu_z(self) -> Array:
        """Its distance from the group in units of the usual spread."""
        return self.measured.gpu.z

    @property
    def gpu_slowdown_to_own_past(self) -> Array:
        """The same against each rank's own past."""
        return _slowdown(self.past[GPU_LEVEL])

    @property
    def section_slowdown(self) -> dict[str, Array]:
        """Median time of each section over the group's reference."""
        return {name: _slowdown(section.median) for name, section in self.measured.sections.items()}

    @property
    def late_seconds(self) -> Array:
        """Seconds that the median rank waited for the collectives beyond what this rank did."""
        return self.measured.late.level


def _slowdown(measure: Measure) -> Array:
    slowdown: Array = np.exp(measure.level)
    return slowdown


class Judge:
    """State over the windows of one job.

    `groups` has one label per rank; None finds the groups from what the ranks have in common.
    """

    def __init__(
        self, groups: Sequence[Hashable] | None = None, thresholds: Thresholds | None = None
    ) -> None:
        self._given = None if groups is None else from_labels(groups)
        self._codes: Codes | None = None
        self._windows = 0
        limits = thresholds or Thresholds()
        self._rules = Rules(limits, Spreads(), Pools())
        self._found = FoundGroups(limits.min_ranks)
        self._persistence: Persistence[Cause] = Persistence(limits.windows_needed, limits.windows_kept)
        self._baseline = Baseline(limits.warmup_windows, limits.min_ranks)

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds in force."""
        return self._rules.thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        # What lasted under other thresholds is no evidence under these; what the ranks' past was still holds.
        self._rules = Rules(thresholds, self._rules.spreads, Pools())
        self._persistence = Persistence(thresholds.windows_needed, thresholds.windows_kept)

    def add(self, window: Window) -> Assessment:
        """Take one window. ValueError if the given groups are not one label per rank."""
        codes = self._groups(window)
        measured = measure(window, codes, self._rules)
        self._windows += 1
        warming_up = self._judged <= 0
        past = self._own_past(window, measured)
        signs = signs_of(window, measured, past, self.thresholds)
        verdicts: tuple[Verdict, ...] = ()
        if warming_up:
            self._rules.forget()  # ranks that compile differ as they never will again
        else:
            hits = self._persistence.add(signs.holds(), window.ranks) | signs.together(self.thresholds)
            unsure = self._given is None and self._judged == self.thresholds.windows_needed
            verdicts = verdicts_of(window, measured, past, signs, hits, self._persistence, unsure)
        return Assessment(verdicts, () if warming_up else signs.withheld, warming_up, measured, past)

    @property
    def _judged(self) -> int:
        """Windows after the warm-up."""
        return self._windows - self.thresholds.warmup_windows

    def save(self) -> dict[str, Any]:
        """The ranks' past as a dict that JSON can hold."""
        return self._baseline.save()

    def saving(self) -> Callable[[], dict[str, Any]]:
        """`save`, as of now, for another thread to do."""
        return self._baseline.saving()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` gave, before the first window. ValueError, and nothing changed, if it is not."""
        self._baseline.restore(saved)

    def _groups(self, window: Window) -> Codes:
        if self._given is not None:
            if len(self._given) != window.ranks:
                raise ValueError(
                    f"straggler groups: {len(self._given)} labels for {window.ranks} ranks; give one per rank"
                )
            return self._given
        codes = self._found.update(window)
        if self._codes is not None and not np.array_equal(codes, self._codes):
            # Levels against another set of ranks are no past to compare with.
            self._baseline = Baseline(0, self.thresholds.min_ranks)
            self._rules.forget()
        self._codes = codes.copy()
        return codes

    def _own_past(self, window: Window, measured: Measured) -> dict[str, Measure]:
        levels = {GPU_LEVEL: measured.gpu.level}
        levels |= {section_key(name): section.median.level for name, section in measured.sections.items()}
        excess = self._baseline.update(levels, measured.groups, window.nodes)
        past = {}
        for name, values in excess.items():
            past[name] = compared = Measure.empty(f"past {name}", window.ranks)
            floor = GPU_SPREAD if name == GPU_LEVEL else SECTION_SPREAD
            for members in measured.groups:
                compared.fill(members, values[members], floor, self._rules)
        return past
