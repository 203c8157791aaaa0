"""The picture of straggler reports: ranks over time, drawn by matplotlib without a display.

What always holds: the picture is written whole or not at all, and whatever is wrong is one line for the user.

Does not cover: what the cells say; that is `heat_map`.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.fault_tolerance.errors import HoldfastError

from .heat_map import HeatMap, frames, heat_map, labels
from .kept import KeptReport
from .legible import legible

FORMATS = ("png", "svg")
LOWEST, HIGHEST = 0.4, 0.9
"""Where the colours begin: at the lowest score, but not below, and not above, these."""

NAMED = "#1f4fd8"
LABELS = 8
"""Nodes with named ranks that are labelled."""

CELL, TALLEST = 0.22, 6.0  # inches


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
    told = [legible(report) for report in told]
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

    height = min(TALLEST, max(1.2, CELL * found.rows))
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
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    known = [score for column in found.columns for score in column.scores if score is not None]
    lowest = min(HIGHEST, max(LOWEST, int(min(known, default=HIGHEST) * 20) / 20))
    shade = Normalize(lowest, 1.0)
    axes.set_facecolor("white")
    mesh = None
    for block in _blocks(found):
        edges = [_day(block[0].start), *(_day(column.end) for column in block)]
        rows = [
            [float("nan") if column.scores[row] is None else column.scores[row] for column in block]
            for row in range(found.rows)
        ]
        axes.axvspan(edges[0], edges[-1], color="#d0d0d0", linewidth=0, zorder=0)
        mesh = axes.pcolormesh(
            edges, range(found.rows + 1), rows, cmap=colormaps["YlOrRd_r"], norm=shade, rasterized=True
        )
    return mesh


def _blocks(found: HeatMap) -> list[list[Any]]:
    """Columns that follow each other without a break."""
    blocks: list[list[Any]] = []
    for column in found.columns:
        if blocks and blocks[-1][-1].end == column.start:
            blocks[-1].append(column)
        else:
            blocks.append([column])
    return blocks


def _time_axis(axes: Any, found: HeatMap) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=4, maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlim(_day(found.columns[0].start), _day(found.columns[-1].end))
    zone = time.tzname[time.localtime(found.columns[-1].end).tm_isdst > 0]
    each = f"; each column the worst of {found.per_column} reports" if found.per_column > 1 else ""
    axes.set_xlabel(f"time of day ({zone}){each}")


def _rank_axis(axes: Any, found: HeatMap, told: Sequence[KeptReport]) -> None:
    axes.set_ylim(found.rows, 0)
    axes.set_ylabel("rank" if found.per_row == 1 else f"rank (each row the worst of {found.per_row})")
    if found.rows <= 16 and found.per_row == 1:
        nodes = {rank: node for report in told for rank, node, _ in report.rows}
        labels = [f"{rank} ({nodes[rank]})" if rank in nodes else str(rank) for rank in found.ranks]
        axes.set_yticks([row + 0.5 for row in range(found.rows)], labels)
        return
    step = _round(len(found.ranks) / 8)
    places = range(0, len(found.ranks), step)
    axes.set_yticks(
        [(place + 0.5) / found.per_row for place in places], [f"{found.ranks[place]:,}" for place in places]
    )


def _restarts(axes: Any, found: HeatMap) -> None:
    span = found.columns[-1].end - found.columns[0].start
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
    """A frame around the time in which a rank was named, and on the right who it is."""
    from matplotlib.patches import Rectangle

    least = found.rows / 90  # rows, so that a frame around one of hundreds is seen
    for first, last in frames(found.marks):
        height = last.row - first.row + 1
        pad = max(0.0, least - height) / 2
        corner = _day(first.start), first.row - pad
        size = _day(first.end) - _day(first.start), height + 2 * pad
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=NAMED, linewidth=1.3, clip_on=False))
    gap = found.rows / 16
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


def _round(step: float) -> int:
    """The next of 1, 2, 4, 8, …: ranks come in such numbers."""
    size = 1
    while size < step:
        size *= 2
    return size
