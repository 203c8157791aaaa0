"""The verdicts of a job, report after report: the rule finds who is slow, this says in what and why.

The rule (`rule.find_stragglers`) sees one table of seconds: of each section, of the GPU's kernels (as one signal), and
the time in which a rank did not wait at collectives. It sees it twice: as measured, and each rank against its own past.
A slow rank is then explained, by the first that holds: its GPU, its host, a section, its arrival at the collectives.
Arrival also acquits: who is slow in a section and yet waits longer at the collectives than the others do, by half of
that or more, either waited in the section or has less to do besides, and no rank waits for it.

Always holds: no clock, no file, no other process; the same windows give the same verdicts.
Does not cover: a job of fewer than `Thresholds.min_ranks` ranks that do the same work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .groups import LEARNING_WINDOWS, Baseline, Codes, FoundGroups, from_labels, members_of
from .report import GPU, HOST, LATE, SECTION, Verdict, longer, ranks_text, seconds
from .rule import (
    LONGEST,
    MEDIAN_ERROR,
    SHORTEST,
    Findings,
    SlowNode,
    SlowRank,
    Suppressed,
    find_stragglers,
    noise_of,
)
from .settings import Thresholds
from .window import (
    COLLECTIVE,
    KERNEL,
    Array,
    Window,
    cells,
    column_medians,
    gpu_levels,
    reference_of,
    sample_size,
    selector,
)
from .window import SECTION as SECTIONS

EXPLAINED_BY_HOST = 0.75
"""A host's losses are the cause if they are at least this share of the time that the rank lost. On a machine with too
few CPUs a rank that has more to do also waits more, so half would not tell the two apart."""
EXPLAINED_BY_SECTION = 0.5
"""A section is why a rank arrives late if what it took longer is at least this share of the lateness."""
MIN_KEYS = 3
"""Kernels that a rank must share with its group before its GPU is compared."""

Signal = tuple[str, str]
"""A kind of verdict, and the section's name."""
OF_GPU, OWN_TIME = (GPU, ""), (LATE, "")


@dataclass(frozen=True)
class Judgement:
    """What one report found."""

    verdicts: tuple[Verdict, ...]
    """Slowest first."""
    suppressed: tuple[str, ...]
    """What was not named, and why: a sentence each."""
    groups: Codes
    """The number of each rank's group."""
    warming_up: bool = False


@dataclass(frozen=True)
class Measured:
    """One window in seconds; arrays are [ranks] of 32 bits, NaN where there is no measurement or no comparable rank."""

    times: Mapping[Signal, Array]
    usual: Mapping[Signal, Array]
    """The median of each rank's group."""
    losses: Mapping[str, Array]
    """What each rank's host lost beyond the median of its group, by cause."""


class Judge:
    """State over the windows of one job.

    `groups` has one label for each rank; None finds the groups from what the ranks have in common.
    """

    def __init__(
        self, groups: Sequence[Hashable] | None = None, thresholds: Thresholds | None = None
    ) -> None:
        self.thresholds = thresholds or Thresholds()
        self._given = None if groups is None else from_labels(groups)
        self._found = FoundGroups(self.thresholds.min_ranks)
        self._codes: Codes | None = None
        self._reports = 0
        self.baseline = Baseline(self.thresholds.warmup_windows, self.thresholds.min_ranks)
        """What each rank was like before; it can be saved and restored."""
        self._forget()

    def _forget(self) -> None:
        self._first = self._reports + 1
        self._recent: deque[Measured] = deque(maxlen=SHORTEST)
        self._times: deque[Mapping[Signal, Array]] = deque(maxlen=LONGEST + 1)
        self._past: deque[Mapping[Signal, Array]] = deque(maxlen=LONGEST + 1)
        self._levels: deque[Mapping[Signal, Array]] = deque(maxlen=LONGEST + 1)
        self._findings: tuple[Findings | None, Findings | None] = (None, None)

    def add(self, window: Window) -> Judgement:
        """Take one window."""
        codes = self._groups(window)
        groups = members_of(codes)
        measured = measure(window, groups, self.thresholds)
        past = self._against_past(measured, groups, window.nodes)
        self._reports += 1
        if self._reports <= self.thresholds.warmup_windows:
            self._forget()  # ranks that compile differ as they never will again
            return Judgement((), (), codes, warming_up=True)
        self._recent.append(measured)
        self._times.append(measured.times)
        self._past.append(past)
        signals = list(dict.fromkeys(signal for times in self._times for signal in times))
        found = [
            find_stragglers(
                _stacked(tables, signals, window.ranks),
                groups=codes.tolist(),
                nodes=window.nodes,
                previous=previous,
                # Two tables: against the others, and against the own past.
                thresholds=replace(self.thresholds, error_rate=self.thresholds.error_rate / 2),
                whole=signals.index(OWN_TIME) if OWN_TIME in signals else None,
            )
            for tables, previous in zip((self._times, self._past), self._findings, strict=True)
        ]
        self._findings = found[0], found[1]
        given, least = self._given is not None, self.thresholds.min_slowdown
        writer = _Writer(window, codes, signals, self._recent, self._first, given, least)
        return Judgement(*writer.verdicts(*found), codes)

    def _groups(self, window: Window) -> Codes:
        if self._given is not None:
            return self._given
        codes = self._found.update(window)
        if self._codes is not None and not np.array_equal(codes, self._codes):
            # Levels against another set of ranks are no past to compare with.
            self.baseline = Baseline(0, self.thresholds.min_ranks)
            self._forget()
        self._codes = codes.copy()
        return codes

    def _against_past(
        self, measured: Measured, groups: Sequence[NDArray[np.intp]], nodes: Sequence[str]
    ) -> dict[Signal, Array]:
        """Seconds as they would be if all ranks had always been alike; a rank that is merely back among the others
        after a time of less work is not slow."""
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = {
                signal: np.log(times / measured.usual[signal]) for signal, times in measured.times.items()
            }
        self._levels.append(levels)
        error = self._baseline_error(list(levels), len(nodes))
        names = {signal: " ".join(signal) for signal in levels}
        excess = self.baseline.update({names[one]: level for one, level in levels.items()}, groups, nodes)
        seconds = {}
        for signal, level in levels.items():
            change = excess[names[signal]]
            with np.errstate(invalid="ignore"):
                change = np.where(change > 0, np.maximum(change - error[signal], 0), change)
                slower = np.where(
                    level > math.log(self.thresholds.min_slowdown) / 2, change, np.minimum(change, 0)
                )
            seconds[signal] = measured.usual[signal] * np.exp(slower)
        return seconds

    def _baseline_error(self, signals: Sequence[Signal], ranks: int) -> dict[Signal, float]:
        """What a rank's past may be wrong by, on any of the ranks: it was learned from a few noisy windows, and the
        rule takes what does not change for slowness."""
        cells = max(1, ranks * len(signals))
        far = (
            NormalDist().inv_cdf(1 - self.thresholds.error_rate / cells)
            * MEDIAN_ERROR
            / math.sqrt(LEARNING_WINDOWS)
        )
        noise, _ = noise_of(_stacked(self._levels, signals, ranks)[:, None], self.thresholds.noise_floor)
        return dict(zip(signals, (far * noise[0]).tolist(), strict=True))


def measure(window: Window, groups: Sequence[NDArray[np.intp]], thresholds: Thresholds) -> Measured:
    """The seconds of all signals, each rank's in its group's usual number of calls."""
    sections = [window.keys[column] for column in window.columns[SECTIONS]]
    signals: list[Signal] = [(SECTION, name) for name in sections]
    if len(window.columns[KERNEL]):
        signals.append(OF_GPU)
    if len(window.columns[COLLECTIVE]) or window.elapsed is not None:
        signals.append(OWN_TIME)
    unknown = np.full(window.ranks, np.nan, np.float32)
    times, usual = {one: unknown.copy() for one in signals}, {one: unknown.copy() for one in signals}
    losses = {cause: np.zeros(window.ranks, np.float32) for cause in window.host_losses}
    for members in groups:
        if len(members) < thresholds.min_ranks:
            continue
        busy = _whole(window, members)
        columns = selector(window.columns[SECTIONS])
        for name, column in zip(sections, _seconds(window, members, columns, thresholds).T, strict=True):
            times[SECTION, name][members] = column
        if OF_GPU in times:
            times[OF_GPU][members], busy = _gpu(window, members, len(groups), thresholds)
        if OWN_TIME in times:
            columns = selector(window.columns[COLLECTIVE])
            waits = _seconds(window, members, columns, thresholds, mean=True)
            waited = np.nansum(waits, axis=1)
            if waits.shape[1]:
                waited[~np.isfinite(waits).any(axis=1)] = np.nan
            times[OWN_TIME][members] = np.maximum(busy - waited, 0.01 * busy) if busy > 0 else np.nan
        for signal, values in times.items():
            of_group = values[members]
            if np.isfinite(of_group).sum() >= thresholds.min_ranks:
                usual[signal][members] = np.nanmedian(of_group)
        for cause, lost in window.host_losses.items():
            values = np.nan_to_num(np.asarray(lost[members], float))
            losses[cause][members] = np.maximum(values - np.median(values), 0)
    return Measured(times, usual, losses)


def _seconds(
    window: Window,
    members: NDArray[np.intp],
    columns: Any,
    thresholds: Thresholds,
    mean: bool = False,
) -> Array:
    """[members, columns]: the median (or mean) time of a call, times the group's usual number of calls."""
    counts = cells(window.counts, members, columns)
    medians = cells(window.medians, members, columns)
    known = np.isfinite(medians) & (medians > 0) & (counts >= thresholds.min_samples)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = cells(window.totals, members, columns) / counts if mean else medians
    calls = column_medians(np.where(known, counts, np.nan))
    seconds: Array = np.where(known, each, np.nan) * calls
    return seconds


def _whole(window: Window, members: NDArray[np.intp]) -> float:
    """Seconds that this window took the group; NaN where no rank knows."""
    elapsed = np.empty(0) if window.elapsed is None else np.asarray(window.elapsed[members], float)
    known = elapsed[np.isfinite(elapsed)]
    return float(np.median(known)) if len(known) else math.nan


def _gpu(
    window: Window, members: NDArray[np.intp], groups: int, thresholds: Thresholds
) -> tuple[Array, float]:
    """Each GPU's seconds as if all ran the group's usual kernels, and the usual seconds in kernels and collectives."""
    kernels, collectives = selector(window.columns[KERNEL]), selector(window.columns[COLLECTIVE])
    ranks, samples = thresholds.min_ranks, thresholds.min_samples
    reference = reference_of(window, members, kernels, collectives, ranks, samples, sample_size(groups))
    levels = gpu_levels(window, members, kernels, reference, MIN_KEYS, samples)
    return np.exp(levels) * reference.compute, reference.compute + reference.waited


def _stacked(tables: Collection[Mapping[Signal, Array]], signals: Sequence[Signal], ranks: int) -> Array:
    """[window, rank, signal]."""
    found = np.full((len(tables), ranks, len(signals)), np.nan, np.float32)
    for number, table in enumerate(tables):
        for column, signal in enumerate(signals):
            if signal in table:
                found[number, :, column] = table[signal]
    return found


class _Writer:
    """From findings to verdicts: the first cause that holds, and the sentence that says how this is known."""

    def __init__(
        self,
        window: Window,
        codes: Codes,
        signals: Sequence[Signal],
        recent: Collection[Measured],
        first: int,
        groups_given: bool,
        min_slowdown: float,
    ) -> None:
        """`first` is the number of the report that the rule counts as window 0."""
        self.window, self.codes, self.signals, self.recent = window, codes, signals, recent
        self.first, self.groups_given, self.min_slowdown = first, groups_given, min_slowdown
        self.hint = False
        self.suppressed: list[str] = []

    def verdicts(self, now: Findings, past: Findings) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
        """Those against the others, then those against the own past that are not among them; and what is left out."""
        found: dict[int | str, Verdict] = {}
        # What is slow from the beginning may have more to do; said once.
        self.hint = now.last == SHORTEST - 1 and not self.groups_given
        for findings, is_past in ((now, False), (past, True)):
            slow: list[SlowNode | SlowRank] = [*findings.nodes, *findings.ranks]
            for one in slow:
                who = one.node if isinstance(one, SlowNode) else one.rank
                seen = who in found or (is_past and isinstance(who, int) and self.window.nodes[who] in found)
                verdict = None if seen else self._verdict(one, is_past)
                if verdict is not None:
                    found[who] = verdict
        self.suppressed += [self._suppressed(one) for one in now.suppressed]
        ordered = sorted(found.values(), key=lambda one: (one.rank is not None, -one.slowdown))
        return tuple(ordered), tuple(self.suppressed)

    def _verdict(self, found: SlowRank | SlowNode, past: bool) -> Verdict | None:
        rank = found.rank if isinstance(found, SlowRank) else None
        node = found.node if isinstance(found, SlowNode) else self.window.nodes[found.rank]
        ranks = [rank] if rank is not None else [n for n, one in enumerate(self.window.nodes) if one == node]
        signals = [self.signals[column] for column in found.signals]
        excess = {signal: self._excess(signal, ranks) for signal in self.signals}
        lost = max(excess[signal] for signal in signals)
        late = excess.get(OWN_TIME, math.nan)
        if OF_GPU not in signals and -late >= EXPLAINED_BY_SECTION * lost:
            who = f"rank {rank}" if rank is not None else f"node {node}"
            what = ", ".join(name for _, name in signals)
            self.suppressed.append(
                f"{who} is slow in {what} by {seconds(lost)} of each report, but waits {seconds(-late)} longer at the "
                "collectives than the others do: no rank waits for it"
            )
            return None
        kind, signal, sentence = self._cause(found, ranks, signals, excess, lost, past)
        slowdown = found.slowdown if past or signal not in self.signals else self._slowdown(signal, ranks)
        if rank is None:
            sentence = (
                f"on {self._how_many(max(signals, key=lambda one: excess[one]), ranks, past)}: {sentence}"
            )
        if kind in (GPU, SECTION) and late >= EXPLAINED_BY_SECTION * lost:
            sentence += f"; at the collectives the others wait {seconds(late)} for it"
        since = self.first + found.since
        if self.hint and not past:
            sentence += "; if it has other work than these, give groups="
        section = signal[1] or None
        return Verdict(rank, node, tuple(ranks), kind, round(slowdown, 3), since, sentence, section)

    def _cause(
        self,
        found: SlowRank | SlowNode,
        ranks: Sequence[int],
        signals: Sequence[Signal],
        excess: Mapping[Signal, float],
        lost: float,
        past: bool,
    ) -> tuple[str, Signal, str]:
        """The kind of verdict, the signal that shows it, and the sentence."""
        against = f"on the median of {len(self._others(ranks))} comparable ranks"
        if isinstance(found, SlowNode):
            against += " of other nodes"
        if past:
            against = "in its own past, while comparable ranks stayed as they were"
        if OF_GPU in signals:
            slowdown = found.slowdown if past else self._slowdown(OF_GPU, ranks)
            return GPU, OF_GPU, f"its kernels take {longer(slowdown)} {against}"
        shown = max(signals, key=lambda signal: (signal[0] == SECTION, excess[signal]))
        losses = self._losses(ranks)
        if losses and sum(losses.values()) >= EXPLAINED_BY_HOST * lost:
            main = max(losses, key=lambda cause: losses[cause])
            share = min(1.0, sum(losses.values()) / lost)
            what = (
                f"what section {shown[1]} lost" if shown[0] == SECTION else "its lateness at the collectives"
            )
            sentence = f"{main} took {seconds(losses[main])} more of each report than on comparable ranks"
            return HOST, shown, f"{sentence}, all host causes explain {share:.0%} of {what} ({seconds(lost)})"
        if shown[0] == SECTION:
            slowdown = found.slowdown if past else self._slowdown(shown, ranks)
            return SECTION, shown, f"section {shown[1]} takes {longer(slowdown)} {against}"
        sections = {signal: excess[signal] for signal in excess if signal[0] == SECTION}
        longest = max(sections, key=lambda signal: sections[signal], default=OWN_TIME)
        if sections and sections[longest] >= EXPLAINED_BY_SECTION * lost:
            more = (
                f"section {longest[1]} takes {seconds(sections[longest])} more of each report than {against}"
            )
            return SECTION, longest, f"{more}, and so it arrives {seconds(lost)} late at the collectives"
        waits = f"at the collectives the others wait {seconds(lost)} of each report for it"
        return LATE, OWN_TIME, f"{waits}, and neither its kernels nor its sections say why"

    def _others(self, ranks: Sequence[int]) -> NDArray[np.intp]:
        """The ranks with which this rank, or the ranks of this node, are compared."""
        return np.setdiff1d(np.flatnonzero(np.isin(self.codes, self.codes[ranks])), ranks)

    def _seconds(self, signal: Signal, ranks: Sequence[int]) -> tuple[Array, Array]:
        """The last windows [window, rank] of these ranks, and of what is usual: for a rank the median of its group,
        for those of a node that of the other nodes' ranks. NaN where nothing is known."""
        nothing = np.full(self.window.ranks, np.nan)  # a section may be new
        times = np.array([one.times.get(signal, nothing) for one in self.recent])
        usual = np.array([one.usual.get(signal, nothing) for one in self.recent])
        if len(ranks) > 1:
            others = self._others(ranks)
            for code in np.unique(self.codes[ranks]):
                alike = others[self.codes[others] == code]
                usual[:, self.codes == code] = column_medians(times[:, alike].T)[:, None]
        return times[:, ranks], usual[:, ranks]

    def _excess(self, signal: Signal, ranks: Sequence[int]) -> float:
        """Seconds of a window beyond what is usual; 0 where nothing is known."""
        times, usual = self._seconds(signal, ranks)
        return _middle(times - usual)

    def _slowdown(self, signal: Signal, ranks: Sequence[int]) -> float:
        times, usual = map(_middle, self._seconds(signal, ranks))
        return times / usual if usual > 0 else 1.0

    def _how_many(self, signal: Signal, ranks: Sequence[int], past: bool) -> str:
        """Of a node's ranks those that are slow, at least half as much as a verdict takes."""
        if past:
            return "most of its ranks"
        times, usual = (np.nan_to_num(one).mean(axis=0) for one in self._seconds(signal, ranks))
        slow = int((times > usual * math.sqrt(self.min_slowdown)).sum())
        return f"all {len(ranks)} ranks" if slow == len(ranks) else f"{slow} of its {len(ranks)} ranks"

    def _losses(self, ranks: Sequence[int]) -> dict[str, float]:
        """What the host lost, by cause."""
        found = {
            cause: [one.losses[cause][ranks] for one in self.recent] for cause in self.window.host_losses
        }
        return {cause: _middle(np.array(losses)) for cause, losses in found.items()}

    def _suppressed(self, one: Suppressed) -> str:
        kind, section = self.signals[one.signal]
        what = f"section {section}" if section else kind
        who = f"node {', '.join(one.nodes)}" if one.nodes else ranks_text(one.ranks, 8)
        return f"{who} ({what}): {one.reason}"


def _middle(values: Array) -> float:
    """The mean over windows of the median of these ranks `[window, rank]`; 0 where nothing is known."""
    return float(np.median(np.nan_to_num(values).mean(axis=0)))
