"""What docs/compare.md says of a run: its conditions, the tables, where Holdfast is worse, and the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.environments import NVRX
from benchmarks.table import table

from .faults import Outcomes
from .figures import Figure

NOISE = 1.05
"""By how much a figure must be larger than another to be called worse: the medians of a busy machine differ as much."""
COLOURS = {"torchrun": "#9aa5b1", "nvrx": "#e0a458", "holdfast": "#2f6f8f"}


def conditions(names: Mapping[str, str], gpus: int) -> str:
    """What held for all, and who is missing."""
    said = [
        "All of them have the same torch, with the sharing of its store off "
        "(`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`; with it on, ranks on gloo do not meet again after torchrun has "
        "restarted them), and their own defaults except for limits, the rendezvous and the signal to a hung rank.",
        "Sizes, memory and faults are of one run. The faults are from Holdfast's own list of "
        "[regressions](regressions.md): they were chosen by the project that fixed them.",
    ]
    if not gpus:
        said.append(
            "The machine has no GPU, which costs a launcher that looks for one time and lines in its log."
        )
    if "nvrx" not in names:
        said.append(f"{NVRX} could not be installed here, and is left out.")
    return " ".join(said)


def tables(names: Mapping[str, str], figures: Sequence[Figure], faults: Mapping[str, Outcomes]) -> str:
    """What there is of figures and faults, and where Holdfast is worse. `names` by `who`, in the columns' order."""
    parts = []
    if figures:
        parts.append("### Figures\n\n" + _figures(names, figures))
    if faults:
        parts.append("### Faults\n\n" + _faults(names, faults))
    return "\n\n".join((*parts, "### Where Holdfast is worse\n\n" + _worse(names, figures, faults)))


def _figures(names: Mapping[str, str], figures: Sequence[Figure]) -> str:
    rows = []
    for figure in figures:
        shown = dict.fromkeys(figure.failed, "failed")
        for who, value in figure.values.items():
            shown[who] = _shown(value, figure.unit) + " (a run failed)" * (who in figure.failed)
        best = min(figure.values, key=lambda who: figure.values[who], default="")
        cells = [f"**{shown[who]}**" if who == best else shown.get(who, "–") for who in names]
        rows.append([figure.what, *cells])
    return table(["", *names.values()], rows)


def _faults(names: Mapping[str, str], faults: Mapping[str, Outcomes]) -> str:
    rows = []
    signs = {True: "✓ ", False: "✗ ", None: ""}
    for what, outcomes in faults.items():
        found = [outcomes.get(who) for who in names]
        rows.append([what, *(signs[one.good] + one.text if one else "–" for one in found)])
    return table(["what happens", *names.values()], rows)


def _worse(names: Mapping[str, str], figures: Sequence[Figure], faults: Mapping[str, Outcomes]) -> str:
    lines = []
    for figure in figures:
        own = figure.values.get("holdfast")
        if "holdfast" in figure.failed:
            lines.append(f"- {figure.what}: a run failed")
        for who, name in names.items():
            other = figure.values.get(who)
            if own is not None and other is not None and own > NOISE * other:
                mine, theirs = _shown(own, figure.unit), _shown(other, figure.unit)
                lines.append(f"- {figure.what}: {mine}, {name} {theirs}")
    for what, outcomes in faults.items():
        if "holdfast" in outcomes and outcomes["holdfast"].good is False:
            lines.append(f"- {what}: {outcomes['holdfast'].text}")
    tried = " and ".join(["figures"] * bool(figures) + ["faults"] * bool(faults))
    return "\n".join(lines) or f"In none of these {tried}, in this run."


def _shown(value: float, unit: str) -> str:
    number = f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def draw(names: Mapping[str, str], figures: Sequence[Figure], path: Path) -> None:
    """Write the SVG. Less is better in every panel."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "holdfast"  # the same figures, the same file
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
