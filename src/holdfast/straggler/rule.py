"""Which ranks, and which nodes, are lastingly slower than those that do the same work.

    findings = find_stragglers(times, nodes=nodes)      # times[window, rank, signal] in seconds
    for node in findings.nodes: print(node.node, node.slowdown)

Pure: arrays in, records out. Noise is what changes between two windows, slowness is what stays.
`docs/straggler-method.md` has the formulas, the assumptions and the rates of detection and of false names.

Arrays are named by their axes: w windows, r rows (ranks or nodes), s signals, g groups, n members of a group.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .groups import from_labels
from .settings import Thresholds
from .window import MAD_TO_SIGMA, quantile, student_quantile

Array = NDArray[np.floating[Any]]
Index = NDArray[np.intp]

SHORTEST, LONGEST = 3, 8
"""The median of so many of the last windows decides."""
SPREAD = 0.40
"""This share of a group, on several nodes or on its only one, is other work rather than slow work."""
TAIL, NORMAL_TAIL = 0.995, 2.807
"""The quantile of the changes that shows long tails, and where a normal distribution has it."""
MEDIAN_ERROR = 1.2533
"""Of a normal distribution: the error of a median over a mean's."""
LASTING, RATIO_ERROR = 3, 1.2
"""Noise that lasts counts by this power of its growth over windows; the error of that growth from one change."""
EFFICIENCY = 0.37
"""Of a median absolute deviation: so many degrees of freedom for each value."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is slower than those that do the same work."""

    rank: int
    signal: int | None
    """The column of `times` that is slow; None for several."""
    slowdown: float
    """Its time in these columns over that of the others: 1.15 takes 15 % longer."""
    since: int
    """The number of the first window in which it was slow."""
    signals: tuple[int, ...]
    """All columns that are slow."""


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A node most of whose ranks are slower than those of the other nodes. The other fields are those of `SlowRank`."""

    node: str
    signal: int | None
    slowdown: float
    since: int
    signals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Suppressed:
    """What would have been named, and why it is not."""

    signal: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What one report found; slowest first."""

    ranks: tuple[SlowRank, ...] = ()
    """A rank of a named node is listed only where it is slower than the rest of that node."""
    nodes: tuple[SlowNode, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    last: int = -1
    """The number of the last window."""


@dataclass(frozen=True, slots=True)
class _Slow:
    """A row that is slow in one signal, for so many of the last windows."""

    row: int
    signal: int
    level: float
    windows: int


def find_stragglers(
    times: ArrayLike,
    *,
    groups: Sequence[Hashable] | None = None,
    nodes: Sequence[str] | None = None,
    previous: Findings | None = None,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 (it is frozen)
    whole: int | None = None,
) -> Findings:
    """Find the ranks and nodes that are slow in the last windows of a job.

    Args:
        times: Seconds `[window, rank, signal]`, the oldest window first; NaN where something was not measured. The
            last nine windows are used; three are needed.
        groups: A label for each rank: only ranks with the same label are compared. By default all are.
        nodes: The name of each rank's node. By default no node is named.
        previous: What was found one window earlier: the numbers of windows continue, and who stays named keeps its
            `since`.
        thresholds: What it takes to be named.
        whole: The column that holds the time of others as well, as a step does of its sections. It is compared like
            the others, but not summed with them: what a signal costs is its share of it, or of the others' sum if
            that is more.

    Raises:
        ValueError: `times` has not three dimensions, or there is not one group or node for each rank.

    Source: `docs/straggler-method.md`.

    Does not cover: why a rank is slow; a rank that is slow because it waits for another one; and groups of which
    `SPREAD` or more are slow on several nodes or on their only one, which are listed in `Findings.suppressed`.
    """
    table = np.asarray(times)
    if table.dtype != np.float32:  # in which large jobs come, and half the memory
        table = table.astype(float)
    if table.ndim != 3:
        raise ValueError(f"find_stragglers: times has {table.ndim} dimensions; give [window, rank, signal]")
    ranks = table.shape[1]
    for name, given in (("groups", groups), ("nodes", nodes)):
        if given is not None and len(given) != ranks:
            raise ValueError(
                f"find_stragglers: {len(given)} {name} for {ranks} ranks; give one for each rank"
            )
    last = len(table) - 1 if previous is None else previous.last + 1
    if len(table) < SHORTEST or not table.size:
        return Findings(last=last)
    report = _Report(table[-LONGEST - 1 :], groups, nodes, thresholds, whole)
    return report.findings(previous or Findings(), last)


class _Report:
    """One call of `find_stragglers`: a table of ranks, a table of nodes, and what is left out of them."""

    def __init__(
        self,
        times: Array,
        groups: Sequence[Hashable] | None,
        nodes: Sequence[str] | None,
        thresholds: Thresholds,
        whole: int | None,
    ) -> None:
        ranks = times.shape[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            self.logs = np.log(times)
        self.logs[~np.isfinite(self.logs)] = np.nan
        recent = np.exp(self.logs[-SHORTEST:])
        self.last = recent[-1]
        total = np.nansum(recent, axis=2, keepdims=True)
        if whole is not None:
            held = np.nan_to_num(recent[:, :, [whole]])
            total = np.maximum(total - held, held)
        self.share = np.median(recent / total, axis=0)
        self.groups = from_labels([0] * ranks if groups is None else groups)
        self.nodes = from_labels([0] * ranks if nodes is None else nodes)
        self.names = list(dict.fromkeys(nodes or [""]))
        self.thresholds = thresholds
        # Where nodes are judged too, two tables may name a rank falsely.
        self.error_rate = thresholds.error_rate / (2 if len(self.names) > 1 else 1)
        self.suppressed: list[Suppressed] = []

    def findings(self, previous: Findings, last: int) -> Findings:
        """Nodes first: the ranks of a slow node are compared with each other, all other ranks with their group."""
        levels = self._rank_levels(self.groups)
        slow_nodes = self._slow_nodes(levels)
        named = {one.row for one in slow_nodes}
        slow = [one for one in self._slow_ranks(levels, self.groups) if int(self.nodes[one.row]) not in named]
        slow = self._without_the_many(slow)
        if named:
            within = from_labels(list(zip(self.groups.tolist(), self.nodes.tolist(), strict=True)))
            inside = self._slow_ranks(self._rank_levels(within), within)
            slow += [one for one in inside if int(self.nodes[one.row]) in named]
        since_rank = {one.rank: one.since for one in previous.ranks}
        since_node = {one.node: one.since for one in previous.nodes}
        ranks = [
            SlowRank(rank, *self._record(found, [rank], last, since_rank.get(rank)))
            for rank, found in _by_row(slow)
        ]
        nodes = [
            SlowNode(self.names[node], *self._record(found, members, last, since_node.get(self.names[node])))
            for node, found in _by_row(slow_nodes)
            for members in [np.flatnonzero(self.nodes == node)]
        ]
        return Findings(
            tuple(sorted(ranks, key=lambda one: -one.slowdown)),
            tuple(sorted(nodes, key=lambda one: -one.slowdown)),
            tuple(self.suppressed),
            last,
        )

    # -- ranks -----------------------------------------------------------------------------------------------------

    def _rank_levels(self, groups: Index) -> Array:
        levels = np.full_like(self.logs, np.nan)
        for members in _by_size(groups, self.thresholds.min_ranks):
            # One by one: it takes several copies of what it compares.
            for window, logs in enumerate(self.logs):
                levels[window, members] = _against_others(logs[None, members], self.thresholds.min_ranks)[0]
        return levels

    def _slow_ranks(self, levels: Array, groups: Index) -> list[_Slow]:
        chance = self.error_rate / max(1, int(np.isfinite(levels[-1]).sum()))
        limit = np.full(levels.shape[1:], np.inf)
        for members in _by_size(groups, self.thresholds.min_ranks):
            noise, changes = noise_of(levels[:, members], self.thresholds.noise_floor)
            limit[members] = (_student(changes, chance) * noise)[:, None]
        slow = self._lasting(levels, limit)
        return [
            one for one in slow if self._costs(one, float(self.share[one.row, one.signal]), ranks=(one.row,))
        ]

    def _without_the_many(self, slow: list[_Slow]) -> list[_Slow]:
        """Leave out ranks that are so large a part of their group that they do other work."""
        kept = []
        together: dict[tuple[int, int], list[_Slow]] = {}
        for one in slow:
            together.setdefault((int(self.groups[one.row]), one.signal), []).append(one)
        for (group, signal), found in together.items():
            measured = (self.groups == group) & np.isfinite(self.logs[-1, :, signal])
            rows = [one.row for one in found]
            # Where the whole group is on one node, nothing says that it is the node: its ranks may be pipeline stages.
            one_node = len(set(self.nodes[rows])) == 1 < len(set(self.nodes[measured]))
            if one_node or len(found) == 1 or len(found) < SPREAD * measured.sum():
                kept += found
            else:
                reason = f"{len(found)} of {measured.sum()} compared ranks are slow: probably other work"
                self.suppressed.append(Suppressed(signal, tuple(rows), (), reason))
        return kept

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _slow_nodes(self, rank_levels: Array) -> list[_Slow]:
        if len(self.names) < 2:
            return []
        levels = _node_levels(self.logs, self.groups, self.nodes, len(self.names))
        chance = self.error_rate / max(1, int(np.isfinite(levels[-1]).sum()))
        noise, changes = noise_of(levels[:, None], self.thresholds.noise_floor)
        of_ranks, rank_changes = noise_of(rank_levels[:, None], self.thresholds.noise_floor)
        # A few nodes say little about their own noise; that of their ranks is larger, and better known.
        limit = np.minimum(_student(changes, chance) * noise, _student(rank_changes, chance) * of_ranks)[0]
        slow = []
        for one in self._lasting(levels, np.broadcast_to(limit, levels.shape[1:])):
            share = float(np.nanmedian(self.share[self.nodes == one.row, one.signal]))
            if self._costs(one, share, nodes=(self.names[one.row],)):
                slow.append(one)
        for signal in sorted({one.signal for one in slow}):
            found = [one for one in slow if one.signal == signal]
            measured = int(np.isfinite(levels[-1, :, signal]).sum())
            if len(found) > 1 and len(found) >= SPREAD * measured:
                slow = [one for one in slow if one.signal != signal]
                reason = f"{len(found)} of {measured} compared nodes are slow: probably other work"
                names = tuple(self.names[one.row] for one in found)
                self.suppressed.append(Suppressed(signal, (), names, reason))
        return slow

    # -- both ------------------------------------------------------------------------------------------------------

    def _lasting(self, levels: Array, limit: Array) -> list[_Slow]:
        """The rule: `levels[w, r, s]` are logarithms of slowdowns; noise stays below `limit[r, s]` in one window."""
        least = math.log(self.thresholds.min_slowdown)
        rows, signals = np.nonzero(levels[-SHORTEST:].min(axis=0) >= least / 2)
        found: dict[int, _Slow] = {}
        for windows in range(SHORTEST, min(LONGEST, len(levels)) + 1):
            last = levels[-windows:, rows, signals]
            need = np.maximum(least, MEDIAN_ERROR / math.sqrt(windows) * limit[rows, signals])
            level = np.median(last, axis=0)
            for one in np.flatnonzero((level >= need) & (last[-SHORTEST:].min(axis=0) >= need / 2)).tolist():
                row, signal = int(rows[one]), int(signals[one])
                slow = levels[::-1, row, signal] >= need[one] / 2
                since = len(slow) if slow.all() else int(slow.argmin())
                found[one] = _Slow(row, signal, float(level[one]), since)
        return list(found.values())

    def _costs(
        self, one: _Slow, share: float, ranks: tuple[int, ...] = (), nodes: tuple[str, ...] = ()
    ) -> bool:
        """Whether the signal is a large enough part of the time; if it is not, records that as suppressed."""
        least = self.thresholds.min_cost_share
        if share >= least:
            return True
        slowdown = math.exp(one.level)
        reason = f"{slowdown:.2f} × slower, but only {100 * share:.1f} % of the measured time is spent there"
        self.suppressed.append(Suppressed(one.signal, ranks, nodes, reason))
        return False

    def _record(
        self, found: Sequence[_Slow], ranks: Sequence[int] | Index, last: int, since: int | None
    ) -> tuple[int | None, float, int, tuple[int, ...]]:
        """The fields of a record but for the first."""
        signals = tuple(one.signal for one in found)
        seconds = np.nanmedian(self.last[list(ranks)][:, list(signals)], axis=0)
        usual = seconds / np.exp([one.level for one in found])
        if since is None:
            since = last + 1 - max(one.windows for one in found)
        return (
            signals[0] if len(signals) == 1 else None,
            round(float(seconds.sum() / usual.sum()), 4),
            since,
            signals,
        )


def _by_size(codes: Index, least: int) -> Iterator[Index]:
    """The groups of at least `least` members, all of one size together: indices [g, n]."""
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    firsts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes >= least]):
        yield order[firsts[sizes == size][:, None] + np.arange(size)]


def _by_row(slow: Sequence[_Slow]) -> Iterator[tuple[int, list[_Slow]]]:
    for row in sorted({one.row for one in slow}):
        yield row, sorted((one for one in slow if one.row == row), key=lambda one: one.signal)


def _against_others(values: Array, least: int) -> Array:
    """Each of `values[w, g, n, s]` less the median of the others; NaN where fewer than `least` are known."""
    ordered = np.sort(values, axis=2)  # NaN at the end
    known = np.isfinite(values).sum(axis=2, keepdims=True)
    half = known // 2
    below, middle, above = (
        np.take_along_axis(ordered, np.clip(half + step, 0, values.shape[2] - 1), axis=2)
        for step in (-1, 0, 1)
    )
    of_even = np.where(values <= below, middle, below)
    of_odd = (
        np.where(values < middle, middle + above, np.where(values > middle, below + middle, below + above))
        / 2
    )
    return np.where(known >= least, values - np.where(known % 2, of_odd, of_even), np.nan)


def noise_of(levels: Array, floor: float) -> tuple[Array, Array]:
    """Standard deviation [g, s] of `levels[w, g, n, s]` between windows, and from how many changes it was taken.

    Where levels change more over several windows than from one to the next, noise lasts: then less of it is seen in
    the changes, and the mean of several windows has more of it than if they were independent.
    """
    if len(levels) < 2:
        nothing = np.zeros(levels.shape[1::2])
        return nothing + np.inf, nothing
    (middle, tail), known = _changes(levels, 1, 0.5, TAIL)
    usual = np.fmax(floor, MAD_TO_SIGMA * middle)
    noise = np.fmax(usual, tail / NORMAL_TAIL)
    if len(levels) > SHORTEST + 1:
        (later,), count = _changes(levels, SHORTEST, 0.5)
        growth = MAD_TO_SIGMA * later[count > 0] / usual[count > 0]
        if growth.size:
            surely = float(np.median(growth)) * (1 - RATIO_ERROR / math.sqrt(count.sum()))
            noise = noise * max(1.0, surely) ** LASTING
    return np.where(known > 0, noise, np.inf), known


def _changes(levels: Array, lag: int, *shares: float) -> tuple[Array, NDArray[Any]]:
    """Quantiles [share, g, s] of `levels[w, g, n, s]` changing over `lag` windows, over √2; how many are known."""
    _, groups, _, signals = levels.shape
    found = np.full((len(shares), groups, signals), np.nan)
    known: NDArray[Any] = np.zeros((groups, signals), np.intp)
    for signal in range(signals):  # one by one: together they would need most memory of a large job's report
        of_signal = levels[..., signal]
        changes = np.abs(of_signal[lag:] - of_signal[:-lag]).swapaxes(0, 1).reshape(groups, -1)
        changes.sort(axis=1)
        known[:, signal] = np.isfinite(changes).sum(axis=1)
        found[:, :, signal] = [quantile(changes, known[:, signal], share) for share in shares]
    return found / math.sqrt(2), known


def _student(changes: Array, chance: float) -> Array:
    """Student's quantile for noise that was taken from so many changes."""
    freedom, places = np.unique(changes, return_inverse=True)
    quantiles = np.array([student_quantile(chance, max(2.0, EFFICIENCY * one)) for one in freedom.tolist()])
    result: Array = quantiles[places].reshape(changes.shape)
    return result


def _node_levels(logs: Array, groups: Index, nodes: Index, count: int) -> Array:
    """Levels of the nodes [w, node, s]: what more than half of a node's ranks exceed.

    Each rank is compared with the other nodes' ranks of its group, each of these nodes counting once.
    """
    # The ranks of one group on one node.
    parts = from_labels(list(zip(groups.tolist(), nodes.tolist(), strict=True)))
    shape = (len(logs), int(parts.max()) + 1, logs.shape[2])
    part, excess = np.full(shape, np.nan), np.full(shape, np.nan)
    levels = np.full((shape[0], count, shape[2]), np.nan)
    group_of = np.zeros(shape[1], np.intp)
    group_of[parts] = groups
    for members in _by_size(parts, 1):
        part[:, parts[members[:, 0]]] = _medians(logs[:, members])
    for members in _by_size(group_of, 2):
        excess[:, members] = _against_others(part[:, members], 2)
    against_nodes = logs - (part - excess)[:, parts]
    for members in _by_size(nodes, 2):
        values = against_nodes[:, members]
        most = np.isfinite(values).sum(axis=2) > members.shape[1] / 2
        levels[:, nodes[members[:, 0]]] = np.where(most, _medians(values, lower=True), np.nan)
    return levels


def _medians(values: Array, *, lower: bool = False) -> Array:
    """Medians of `values[w, g, n, s]` over n; of an even number of values the mean of the two, or the lower one."""
    ordered = np.moveaxis(np.sort(values, axis=2), 2, -1)
    known = np.isfinite(ordered).sum(axis=-1)
    if not lower:
        return quantile(ordered, known, 0.5)
    result: Array = np.take_along_axis(ordered, (np.maximum(known - 1, 0) // 2)[..., None], axis=-1)[..., 0]
    return result
