"""The plot of docs/compare.md: a panel for each figure that has one, a bar for each contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

from .figures import Figure

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "holdfast"  # the same figures, the same file
COLOURS = {"torchrun": "#9aa5b1", "nvrx": "#e0a458", "holdfast": "#2f6f8f"}


def draw(names: Mapping[str, str], figures: Sequence[Figure], path: Path) -> None:
    """Write the SVG. Less is better in every panel."""
    import matplotlib.pyplot as plt

    shown = [figure for figure in figures if figure.panel]
    columns = 4
    rows = -(-len(shown) // columns)
    canvas, grid = plt.subplots(rows, columns, figsize=(3.1 * columns, 1.7 * rows), squeeze=False)
    for axes, figure in zip(grid.flat, shown, strict=False):
        who = [each for each in names if each in figure.values][::-1]
        values = [figure.values[each] for each in who]
        bars = axes.barh([names[each] for each in who], values, color=[COLOURS[each] for each in who])
        axes.bar_label(bars, [f" {value:.3g}" for value in values], fontsize=8)
        axes.set_title(figure.panel, fontsize=9, loc="left")
        axes.set_xlim(0, 1.25 * max(values) or 1)
        axes.tick_params(axis="y", labelsize=8, length=0)
        axes.xaxis.set_visible(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
    for axes in list(grid.flat)[len(shown) :]:
        axes.axis("off")
    canvas.tight_layout()
    canvas.savefig(path, format="svg", metadata={"Date": None})
    plt.close(canvas)
