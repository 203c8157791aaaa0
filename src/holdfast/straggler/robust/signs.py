"""What speaks against whom in one window: for each possible cause, how far each rank passes the thresholds.

A sign against more ranks than `max_blamed_share` of a group is withheld: so many slow alike do different work.

Does not cover: several stragglers in a group so small that they are more than that share; the note says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .measure import GPU_LEVEL, Measure, Measured, section_key
from .thresholds import Thresholds
from .verdict import GPU, HOST, LATE, SECTION
from .window import Array, Window

EXPLAINED_BY_HOST = 0.75
"""A host's losses are the cause if they are at least this share of the time that the rank lost. On a machine with too
few CPUs a rank that has more to do also waits more, so half would not tell the two apart."""
EXPLAINED_BY_SECTIONS = 0.5
"""What sections took longer is why a rank is late if it is at least this share of its lateness."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What a sign is about: a kind of verdict, the section if one, and whether the rank's own past is the measure."""

    kind: str
    section: str | None = None
    past: bool = False
    pooled: bool = False
    """It is the last windows taken together that say so, which is lasting by itself."""


@dataclass(frozen=True)
class Signs:
    """The signs of one window, by cause; arrays [ranks]."""

    margins: dict[Cause, Array]
    """1 just passes all thresholds but persistence; 0: nothing."""
    losses: dict[str, Array]
    """Seconds that each rank's host lost beyond what the group's median rank did, where that is no noise, by cause."""
    withheld: tuple[str, ...]

    def holds(self) -> dict[Cause, NDArray[np.bool_]]:
        """Which ranks each sign of this window speaks against."""
        return {cause: margin >= 1 for cause, margin in self.margins.items() if not cause.pooled}

    def together(self, thresholds: Thresholds) -> dict[Cause, NDArray[np.intp]]:
        """The same of several windows taken together, as the hits that a verdict takes."""
        return {
            cause: np.where(margin >= 1, thresholds.windows_needed, 0)
            for cause, margin in self.margins.items()
            if cause.pooled
        }


def signs_of(
    window: Window, measured: Measured, past: Mapping[str, Measure], thresholds: Thresholds
) -> Signs:
    """All signs of one window; `past` has the levels against the own past, by name."""
    losses = _extra_losses(measured)
    margins = _gpu_signs(measured, past, thresholds)
    margins |= _late_signs(measured, losses, thresholds)
    for name in measured.sections:
        for cause, margin in _section_signs(name, measured, past, losses, thresholds).items():
            margins[cause] = np.maximum(margin, margins.get(cause, 0))
    notes: list[str] = []
    for cause, margin in margins.items():
        margins[cause] = _without_the_many(cause, margin, measured.groups, thresholds, notes)
    return Signs(margins, losses, tuple(notes))


def _gpu_signs(measured: Measured, past: Mapping[str, Measure], thresholds: Thresholds) -> dict[Cause, Array]:
    effect = thresholds.min_effect
    signs = {Cause(GPU): measured.gpu.margin(effect)}
    if GPU_LEVEL in past:
        signs[Cause(GPU, past=True)] = _past_margin(past[GPU_LEVEL], measured.gpu.level, effect)
    return signs


def _past_margin(past: Measure, level: Array, effect: float) -> Array:
    """Slower than its own past, and not merely back among the others after a time of less work."""
    with np.errstate(invalid="ignore"):
        return np.where(level > effect / 2, past.margin(effect), 0)


def _late_margin(late: Measure, busy: Array, thresholds: Thresholds) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        share = late.level / (busy * thresholds.min_late_share)
        return np.nan_to_num(np.minimum(late.z / late.critical, share), nan=0.0, posinf=0.0)


def _late_signs(
    measured: Measured, losses: Mapping[str, Array], thresholds: Thresholds
) -> dict[Cause, Array]:
    """Who is late, and why: the host, the section that took so much longer, or nothing that was measured."""
    late = measured.late.level
    by_host = _explained(losses, late)
    excess = np.array([one.excess for one in measured.sections.values()]).reshape(-1, len(late))
    with np.errstate(invalid="ignore"):
        by_sections = (late > 0) & (excess.sum(axis=0) >= EXPLAINED_BY_SECTIONS * late)
    single = _late_margin(measured.late, measured.busy, thresholds)
    signs = {}
    for pooled, margin in ((False, single), (True, measured.late.pooled)):
        signs[Cause(HOST, pooled=pooled)] = np.where(by_host, margin, 0)
        signs[Cause(LATE, pooled=pooled)] = np.where(by_sections | by_host, 0, margin)
        for name, section in measured.sections.items():
            longest = by_sections & ~by_host & (section.excess > 0) & (section.excess == excess.max(axis=0))
            signs[Cause(SECTION, name, pooled=pooled)] = np.where(longest, margin, 0)
    mean = _late_margin(measured.mean_late, measured.busy, thresholds)
    mean = np.where(_explained(losses, measured.mean_late.level), mean, 0)
    signs[Cause(HOST)] = np.maximum(signs[Cause(HOST)], mean)
    return signs


def _section_signs(
    name: str,
    measured: Measured,
    past: Mapping[str, Measure],
    losses: Mapping[str, Array],
    thresholds: Thresholds,
) -> dict[Cause, Array]:
    section, effect = measured.sections[name], thresholds.min_effect
    with np.errstate(invalid="ignore"):
        # Who waits at the collectives more than the others is held up; its long section is the waiting.
        waits = measured.late.z <= -measured.late.critical
    counts = (section.cost >= thresholds.min_cost_share) & ~waits
    explained = _explained(losses, section.excess)
    signs = {}
    for pooled, margin in ((False, section.median.margin(effect)), (True, section.median.pooled)):
        signs[Cause(SECTION, name, pooled=pooled)] = np.where(counts & ~explained, margin, 0)
        signs[Cause(HOST, name, pooled=pooled)] = np.where(counts & explained, margin, 0)
    # The host took the time: then the section is no reason, whether or not the loss lasts.
    of_mean = np.where(counts & explained, section.mean.margin(effect), 0)
    signs[Cause(HOST, name)] = np.maximum(signs[Cause(HOST, name)], of_mean)
    if section_key(name) in past:
        own = _past_margin(past[section_key(name)], section.median.level, effect)
        signs[Cause(SECTION, name, past=True)] = np.where(counts & ~explained, own, 0)
    return signs


def _extra_losses(measured: Measured) -> dict[str, Array]:
    """Only what stands out in its group: on a busy machine every rank waits, one a little more than another."""
    with np.errstate(invalid="ignore"):
        return {
            cause: np.where(lost.z >= lost.critical, lost.level, 0.0)
            for cause, lost in measured.losses.items()
        }


def _explained(losses: Mapping[str, Array], lost: Array) -> NDArray[np.bool_]:
    """Where the host's losses are most of `lost` seconds [ranks]."""
    if not losses:
        return np.zeros(len(lost), dtype=bool)
    with np.errstate(invalid="ignore"):
        explained: NDArray[np.bool_] = (lost > 0) & (sum(losses.values()) >= EXPLAINED_BY_HOST * lost)
    return explained


def _without_the_many(
    cause: Cause, margin: Array, groups: Sequence[NDArray[np.intp]], thresholds: Thresholds, notes: list[str]
) -> Array:
    if not (margin >= 1).any():
        return margin
    margin = margin.copy()
    for members in groups:
        blamed = int((margin[members] >= 1).sum())
        allowed = max(1, int(thresholds.max_blamed_share * len(members)))
        if blamed > allowed:
            margin[members] = 0
            what = f"section {cause.section}" if cause.section else cause.kind
            notes.append(
                f"{blamed} of {len(members)} compared ranks are slow ({what}): too many to be stragglers, so "
                f"probably other work; nobody is blamed. Give groups= if they do different work."
            )
    return margin
