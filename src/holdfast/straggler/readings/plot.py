"""The picture of straggler reports: ranks over time, drawn by matplotlib without a display.

What always holds: the picture is of bounded size, and written whole or not at all; whatever is wrong is one line for
the user. A cell shows the worst of the ranks and reports that it stands for, so one slow rank among thousands is seen;
it is NaN where nothing is known.

Does not cover: which rank of a cell it is; verdicts name ranks.
"""

from __future__ import annotations

import io
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from holdfast.fault_tolerance.errors import HoldfastError

from .kept import KeptReport

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMATS = ("png", "svg")
LOWEST, HIGHEST = 0.4, 0.9
"""Where the colours begin: at the lowest score, but not below, and not above, these."""

NAMED = "#1f4fd8"
LABELS = 8
"""Nodes with named ranks that are labelled."""

CELL, TALLEST = 0.22, 6.0  # inches
ROWS, COLUMNS = 512, 480
"""The most that are distinguished."""
ALONE = 60.0
"""Seconds that a single report is taken to cover."""

Span = tuple[float, float]
"""From when to when, unix seconds."""


@dataclass(frozen=True)
class Mark:
    """A time in which a rank was named."""

    rank: int
    node: str
    row: int
    span: Span
    slowdown: float
    """The most of that time."""


@dataclass(frozen=True)
class HeatMap:
    """Ranks over time: columns in the order of time, rows in the order of ranks."""

    ranks: tuple[int, ...]
    per_row: int
    """Ranks in each row; the last may have fewer."""
    per_column: int
    """Reports in each column, at most."""
    columns: tuple[Span, ...]
    scores: NDArray[np.float64]
    """[rows, columns], from 0 (worst) to 1."""
    marks: tuple[Mark, ...]
    restarts: tuple[tuple[float, int], ...]
    """When the first report of a further cycle begins, and the cycle."""


def heat_map(told: Sequence[KeptReport], rows: int = ROWS, columns: int = COLUMNS) -> HeatMap:
    """The table of these reports, of at most so many rows and about so many columns; at least one report."""
    import numpy as np

    ranks = tuple(sorted({rank for report in told for rank in report.overall}))
    per_row, per_column = -(-len(ranks) // rows), -(-len(told) // columns)
    place = {rank: number for number, rank in enumerate(ranks)}
    spans = _spans(told)
    starts: list[int] = []  # of the columns: none continues over a break
    for number, (start, _) in enumerate(spans):
        if not starts or number - starts[-1] == per_column or start != spans[number - 1][1]:
            starts.append(number)
    found = []
    for report in told:
        scores = np.full(len(ranks), np.nan)
        scores[[place[rank] for rank in report.overall]] = list(report.overall.values())
        found.append(np.fmin.reduceat(scores, np.arange(0, len(ranks), per_row)))
    return HeatMap(
        ranks,
        per_row,
        per_column,
        tuple((spans[first][0], spans[after - 1][1]) for first, after in pairwise([*starts, len(told)])),
        np.fmin.reduceat(np.stack(found, axis=1), starts, axis=1),
        _marks(told, spans, {rank: number // per_row for rank, number in place.items()}),
        tuple(
            (span[0], report.cycle)
            for before, report, span in zip(told, told[1:], spans[1:], strict=False)
            if _life(before) != _life(report)
        ),
    )


def _spans(told: Sequence[KeptReport]) -> list[Span]:
    """The time that each report is about: since the one before, unless there was a break."""
    lengths = [max(0.0, report.t - before.t) for before, report in pairwise(told)]
    usual = (median(lengths) if lengths else 0.0) or ALONE
    spans = [(told[0].t - usual, told[0].t)]
    for before, report in pairwise(told):
        follows = _life(before) == _life(report) and report.t - before.t <= 2 * usual
        start = before.t if follows else max(before.t, report.t - usual)
        spans.append((start, max(start, report.t)))
    return spans


def _life(report: KeptReport) -> tuple[int, int]:
    return report.run, report.cycle


def _marks(told: Sequence[KeptReport], spans: Sequence[Span], row_of: dict[int, int]) -> tuple[Mark, ...]:
    """One for each rank and time in which it was named without a break."""
    marks: dict[int, list[Mark]] = defaultdict(list)
    for report, (start, end) in zip(told, spans, strict=True):
        for rank, verdict in [(rank, one) for one in report.verdicts for rank in one.ranks if rank in row_of]:
            of_rank, new = marks[rank], verdict.slowdown
            last = of_rank[-1] if of_rank else None
            if last is not None and last.span[1] in (
                start,
                end,
            ):  # it continues, or is named twice in one report
                of_rank[-1] = replace(last, span=(last.span[0], end), slowdown=max(last.slowdown, new))
            else:
                of_rank.append(Mark(rank, verdict.node, row_of[rank], (start, end), new))
    return tuple(
        sorted((one for some in marks.values() for one in some), key=lambda one: (one.span[0], one.rank))
    )


def labels(found: HeatMap, most: int) -> list[tuple[int, str]]:
    """Row and text for each node with named ranks, those that were named longest; in the order of rows."""
    nodes: dict[str, list[Mark]] = defaultdict(list)
    for mark in found.marks:
        nodes[mark.node].append(mark)
    longest = sorted(nodes.values(), key=lambda marks: -sum(mark.span[1] - mark.span[0] for mark in marks))
    texts = []
    for marks in longest[:most]:
        ranks = sorted({mark.rank for mark in marks})
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks from {ranks[0]}"
        worst = max(mark.slowdown for mark in marks)
        texts.append((min(mark.row for mark in marks), f"{who}, {worst:.2f}x\n{marks[0].node}"))
    texts.sort()
    if len(longest) > most:
        texts.append((len(found.scores) - 1, f"and ranks on\n{len(longest) - most} more nodes"))
    return texts


# -- the picture ---------------------------------------------------------------------------------------------------


def draw(told: Sequence[KeptReport], path: str) -> None:
    """Draw these reports into a file, PNG or SVG by its ending. Raises HoldfastError."""
    ending = os.path.splitext(path)[1].lower().removeprefix(".")
    if ending not in FORMATS:
        raise HoldfastError(f"--plot {path}: the file must end in .png or .svg")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its notes about fonts and caches
    try:
        import matplotlib
    except ImportError as error:
        raise HoldfastError(f"--plot needs matplotlib ({error}): pip install 'holdfast[plot]'") from None
    found = heat_map(told)
    picture = io.BytesIO()
    # A name with two dollar signs is no formula.
    style = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "holdfast", "text.parse_math": False}
    with matplotlib.rc_context(style):
        _figure(found, told).savefig(picture, format=ending, dpi=150)
    try:
        with open(path, "wb") as file:
            file.write(picture.getvalue())
    except OSError as error:
        raise HoldfastError(f"--plot {path}: {error.strerror}") from None


def _figure(found: HeatMap, told: Sequence[KeptReport]) -> Any:
    from matplotlib.figure import Figure

    height = min(TALLEST, max(1.2, CELL * len(found.scores)))
    figure = Figure(figsize=(11, height + 2.3), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(height, 0.14))
    axes, bar = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    mesh = _cells(axes, found)
    colours = figure.colorbar(mesh, cax=bar, orientation="horizontal", extend="min")
    colours.set_label(_meaning(told) + "; grey: not known; white: no reports")
    _time_axis(axes, found)
    _rank_axis(axes, found, told)
    _restarts(axes, found)
    _named(axes, found)
    axes.set_title(_title(found, told), loc="left", fontsize=11, fontweight="bold", pad=18)
    return figure


def _cells(axes: Any, found: HeatMap) -> Any:
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    known = found.scores[np.isfinite(found.scores)]
    lowest = min(HIGHEST, max(LOWEST, int(known.min(initial=HIGHEST) * 20) / 20))
    shade = Normalize(lowest, 1.0)
    axes.set_facecolor("white")
    starts = [0] + [n for n, (one, other) in enumerate(pairwise(found.columns), 1) if one[1] != other[0]]
    for first, after in pairwise([*starts, len(found.columns)]):  # columns without a break between them
        block = found.columns[first:after]
        edges = [_day(block[0][0]), *(_day(end) for _, end in block)]
        axes.axvspan(edges[0], edges[-1], color="#d0d0d0", linewidth=0, zorder=0)
        mesh = axes.pcolormesh(
            edges,
            range(len(found.scores) + 1),
            np.ma.masked_invalid(found.scores[:, first:after]),
            cmap=colormaps["YlOrRd_r"],
            norm=shade,
            rasterized=True,
        )
    return mesh


def _time_axis(axes: Any, found: HeatMap) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=4, maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlim(_day(found.columns[0][0]), _day(found.columns[-1][1]))
    zone = time.tzname[time.localtime(found.columns[-1][1]).tm_isdst > 0]
    each = f"; each column the worst of {found.per_column} reports" if found.per_column > 1 else ""
    axes.set_xlabel(f"time of day ({zone}){each}")


def _rank_axis(axes: Any, found: HeatMap, told: Sequence[KeptReport]) -> None:
    axes.set_ylim(len(found.scores), 0)
    axes.set_ylabel("rank" if found.per_row == 1 else f"rank (each row the worst of {found.per_row})")
    if len(found.scores) <= 16 and found.per_row == 1:
        nodes = {rank: node for report in told for rank, node, _ in report.rows}
        labels = [f"{rank} ({nodes[rank]})" if rank in nodes else str(rank) for rank in found.ranks]
        axes.set_yticks([row + 0.5 for row in range(len(found.scores))], labels)
        return
    step = 1 << max(0, math.ceil(math.log2(len(found.ranks) / 8)))  # ranks come in powers of two
    places = range(0, len(found.ranks), step)
    axes.set_yticks(
        [(place + 0.5) / found.per_row for place in places], [f"{found.ranks[place]:,}" for place in places]
    )


def _restarts(axes: Any, found: HeatMap) -> None:
    span = found.columns[-1][1] - found.columns[0][0]
    labelled = -span
    for at, cycle in found.restarts:
        axes.axvline(_day(at), color="black", linestyle=(0, (4, 3)), linewidth=1)
        if at - labelled < span / 9:  # no room for one more text
            continue
        labelled = at
        text = axes.annotate(
            f"restart, cycle {cycle}", (_day(at), 1), (0, 3), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize=8, ha="center", va="bottom",
        )  # fmt: skip
        text.set_in_layout(False)


def _named(axes: Any, found: HeatMap) -> None:
    """A frame around each time in which ranks of a node were named, and on the right who they are."""
    from matplotlib.patches import Rectangle

    least = len(found.scores) / 90  # rows, so that a frame around one of hundreds is seen
    marks = sorted(found.marks, key=lambda mark: (mark.span, mark.node))
    for (span, _), together in groupby(marks, lambda mark: (mark.span, mark.node)):
        rows = [mark.row for mark in together]
        height = max(rows) - min(rows) + 1
        pad = max(0.0, least - height) / 2
        start, end = map(_day, span)
        corner, size = (start, min(rows) - pad), (end - start, height + 2 * pad)
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=NAMED, linewidth=1.3, clip_on=False))
    gap = len(found.scores) / 16
    place = -gap
    for row, text in labels(found, LABELS):
        place = max(row + 0.5, place + gap)
        axes.annotate(
            text, (1, row + 0.5), (1.02, place), xycoords=axes.get_yaxis_transform(),
            textcoords=axes.get_yaxis_transform(), color=NAMED, fontsize=8, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": NAMED, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip


def _title(found: HeatMap, told: Sequence[KeptReport]) -> str:
    ranks, reports = len(found.ranks), len(told)
    named = len({mark.rank for mark in found.marks})
    return (
        f"Straggler reports: {ranks:,} rank{'s' if ranks > 1 else ''}, {reports:,} report{'s' if reports > 1 else ''}, "
        + (
            f"{named} rank{'s' if named > 1 else ''} named as slow (blue)"
            if named
            else "no rank named as slow"
        )
    )


def _meaning(told: Sequence[KeptReport]) -> str:
    kinds = {(column["of"], column["score"]) for column in told[-1].columns}
    against = "the fastest rank" if any(score == "relative" for _, score in kinds) else "its own best"
    what = "GPU kernels" if any(of == "gpu" for of, _ in kinds) else "its slowest section"
    return f"score: speed of each rank against {against}, {what} (1.0 is best)"


def _day(t: float) -> Any:
    from matplotlib.dates import date2num

    return date2num(datetime.fromtimestamp(t))
