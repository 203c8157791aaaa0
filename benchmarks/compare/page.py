"""The tables of docs/compare.md, from what was measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .faults import Outcomes
from .figures import Figure

NOISE = 1.05
"""By how much a figure must be larger than another to be called worse: the medians of a busy machine differ as much."""


def tables(names: Mapping[str, str], figures: Sequence[Figure], faults: Mapping[str, Outcomes]) -> str:
    """Figures, faults, and where Holdfast is worse. `names` by `who`, in the order of the columns."""
    return "\n\n".join(
        (
            "### Figures\n\n" + _figures(names, figures),
            "### Faults\n\n" + _faults(names, faults),
            "### Where Holdfast is worse\n\n" + _worse(names, figures, faults),
        )
    )


def _figures(names: Mapping[str, str], figures: Sequence[Figure]) -> str:
    lines = [_row("", *names.values()), _row(*["---"] * (1 + len(names)))]
    for figure in figures:
        shown = {who: f"{value:.3g} {figure.unit}".rstrip() for who, value in figure.values.items()}
        best = min(figure.values, key=lambda who: figure.values[who])
        cells = [f"**{shown[who]}**" if who == best else shown.get(who, "–") for who in names]
        lines.append(_row(figure.what, *cells))
    return "\n".join(lines)


def _faults(names: Mapping[str, str], faults: Mapping[str, Outcomes]) -> str:
    lines = [_row("what happens", *names.values()), _row(*["---"] * (1 + len(names)))]
    signs = {True: "✓ ", False: "✗ ", None: ""}
    for what, outcomes in faults.items():
        found = [outcomes.get(who) for who in names]
        lines.append(_row(what, *(signs[one.good] + one.text if one else "–" for one in found)))
    return "\n".join(lines)


def _worse(names: Mapping[str, str], figures: Sequence[Figure], faults: Mapping[str, Outcomes]) -> str:
    lines = []
    for figure in figures:
        own = figure.values.get("holdfast")
        for who, name in names.items():
            other = figure.values.get(who)
            if own is not None and other is not None and own > NOISE * other:
                lines.append(
                    f"- {figure.what}: {own:.3g} {figure.unit}".rstrip()
                    + f", {name} {other:.3g} {figure.unit}".rstrip()
                )
    for what, outcomes in faults.items():
        if "holdfast" in outcomes and outcomes["holdfast"].good is False:
            lines.append(f"- {what}: {outcomes['holdfast'].text}")
    return "\n".join(lines) or "In none of these figures and faults, in this run."


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
