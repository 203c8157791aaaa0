"""The picture of straggler reports: ranks over time, drawn by matplotlib without a display.

What always holds: the picture is of bounded size, and written whole or not at all; whatever is wrong is one line for
the user. A cell shows the worst of the ranks and reports that it stands for, so one slow rank among thousands is seen;
it is NaN where nothing is known.

Does not cover: time between two reports: all have the same width. Which rank of a cell it is; verdicts name ranks.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
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
LABELS, TICKS = 8, 8
"""Named ranks with a label, and ticks of an axis."""
CELL, TALLEST = 0.22, 6.0  # inches
ROWS, COLUMNS = 512, 480
"""The most that are distinguished."""


def heat_map(
    told: Sequence[KeptReport], rows: int = ROWS, columns: int = COLUMNS
) -> tuple[NDArray[np.float64], list[int], int, int]:
    """The worst scores [row, column] of these reports, at least one, in at most so many rows and columns; the ranks in
    order, of which each row has so many, and how many reports each column has."""
    import numpy as np

    ranks = sorted({rank for report in told for rank in report.overall})
    per_row, per_column = -(-len(ranks) // rows), -(-len(told) // columns)
    place = {rank: number for number, rank in enumerate(ranks)}
    found = []
    for report in told:
        scores = np.full(len(ranks), np.nan)
        scores[[place[rank] for rank in report.overall]] = list(report.overall.values())
        found.append(np.fmin.reduceat(scores, np.arange(0, len(ranks), per_row)))
    cells = np.fmin.reduceat(np.stack(found, axis=1), np.arange(0, len(told), per_column), axis=1)
    return cells, ranks, per_row, per_column


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
    picture = io.BytesIO()
    # A name with two dollar signs is no formula.
    style = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "holdfast", "text.parse_math": False}
    with matplotlib.rc_context(style):
        _figure(told).savefig(picture, format=ending, dpi=150)
    try:
        with open(path, "wb") as file:
            file.write(picture.getvalue())
    except OSError as error:
        raise HoldfastError(f"--plot {path}: {error.strerror}") from None


def _figure(told: Sequence[KeptReport]) -> Any:
    import numpy as np
    from matplotlib.figure import Figure

    cells, ranks, per_row, per_column = heat_map(told)
    height = min(TALLEST, max(1.2, CELL * len(cells)))
    figure = Figure(figsize=(11, height + 2.3), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(height, 0.14))
    axes, bar = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    known = cells[np.isfinite(cells)]
    lowest = min(HIGHEST, max(LOWEST, int(known.min(initial=HIGHEST) * 20) / 20))
    axes.set_facecolor("#d0d0d0")
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(cells), cmap="YlOrRd_r", vmin=lowest, vmax=1.0, rasterized=True
    )
    figure.colorbar(mesh, cax=bar, orientation="horizontal", extend="min").set_label(
        f"{_meaning(told)}; grey: not known"
    )
    axes.set_ylim(len(cells), 0)
    axes.set_ylabel("rank" if per_row == 1 else f"rank (each row the worst of {per_row})")
    shown = range(0, len(ranks), -(-len(ranks) // TICKS))
    axes.set_yticks([(place + 0.5) / per_row for place in shown], [f"{ranks[place]:,}" for place in shown])
    shown = range(0, len(told), -(-len(told) // TICKS))
    moments = [datetime.fromtimestamp(told[place].t).strftime("%m-%d\n%H:%M") for place in shown]
    axes.set_xticks([(place + 0.5) / per_column for place in shown], moments)
    each = f"; each column the worst of {per_column} reports" if per_column > 1 else ""
    axes.set_xlabel(f"time of day ({time.tzname[time.localtime(told[-1].t).tm_isdst > 0]}){each}")
    for place, (before, report) in enumerate(pairwise(told), 1):
        if (before.run, before.cycle) != (report.run, report.cycle):
            axes.axvline(place / per_column, color="black", linestyle=(0, (4, 3)), linewidth=1)
            axes.annotate(
                f"restart, cycle {report.cycle}", (place / per_column, 0), (0, 3), textcoords="offset points",
                fontsize=8, ha="center", va="bottom",
            )  # fmt: skip
    named = _named(axes, told, {rank: number // per_row for number, rank in enumerate(ranks)}, per_column)
    many = f"{len(ranks):,} rank{'s' * (len(ranks) > 1)}, {len(told):,} report{'s' * (len(told) > 1)}"
    who = f"{named} rank{'s' * (named > 1)} named as slow (blue)" if named else "no rank named as slow"
    axes.set_title(f"Straggler reports: {many}, {who}", loc="left", fontsize=11, fontweight="bold", pad=18)
    return figure


def _named(axes: Any, told: Sequence[KeptReport], row_of: dict[int, int], per_column: int) -> int:
    """A mark where a rank was named, and on the right those that were named most often. Returns how many were."""
    named: dict[int, list[tuple[int, str, float]]] = defaultdict(list)  # report, node, slowdown
    for number, report in enumerate(told):
        for verdict in report.verdicts:
            for rank in row_of.keys() & set(verdict.ranks):
                named[rank].append((number, verdict.node, verdict.slowdown))
    places = {(number // per_column, row_of[rank]) for rank, times in named.items() for number, _, _ in times}
    axes.scatter([x + 0.5 for x, _ in places], [y + 0.5 for _, y in places], s=9, color=NAMED, marker="s")
    often = sorted(named, key=lambda rank: -len(named[rank]))[:LABELS]
    gap, place = max(row_of.values(), default=0) / 16, -1e9
    for rank in sorted(often, key=row_of.__getitem__):
        place = max(row_of[rank] + 0.5, place + gap)
        worst = max(slowdown for _, _, slowdown in named[rank])
        axes.annotate(
            f"rank {rank}, {worst:.2f}x\n{named[rank][-1][1]}", (1.02, place), color=NAMED, fontsize=8,
            xycoords=axes.get_yaxis_transform(), va="center", annotation_clip=False,
        )  # fmt: skip
    return len(named)


def _meaning(told: Sequence[KeptReport]) -> str:
    kinds = {(column["of"], column["score"]) for column in told[-1].columns}
    against = "the fastest rank" if any(score == "relative" for _, score in kinds) else "its own best"
    what = "GPU kernels" if any(of == "gpu" for of, _ in kinds) else "its slowest section"
    return f"score: speed of each rank against {against}, {what} (1.0 is best)"
