"""The table of the worst and best ranks of one report. Pure.

What always holds: ranks with a verdict and the worst ranks are in it; sections that a terminal has no room for are left
out, those with the best scores first, and it says how many.

Does not cover: all ranks; the journal does not have all their scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .kept import KeptReport

ALL, WORST, BEST = 16, 10, 3
"""Up to `ALL` ranks are all shown; else the worst, the best, and those with a verdict."""

LONGEST_NODE = 20
SCORE, GAP = 5, 3  # characters of one score, and between the blocks


class _Block:
    """The scores of one thing, relative and individual, side by side under one title."""

    def __init__(self, title: str, places: Mapping[str, int], lowest: float) -> None:
        self.lowest, self.is_gpu = lowest, title == "GPU"
        self.places = [places[score] for score in ("relative", "individual") if score in places]
        self.heads = [
            short for score, short in (("relative", "rel"), ("individual", "ind")) if score in places
        ]
        self._title = title

    @property
    def width(self) -> int:
        return max(SCORE * len(self.places) + len(self.places) - 1, min(len(self._title), 12))

    @property
    def title(self) -> str:
        return self._title if len(self._title) <= self.width else "…" + self._title[1 - self.width :]

    def cell(self, scores: Sequence[float | None]) -> str:
        texts = ["-" if scores[place] is None else f"{scores[place]:.2f}" for place in self.places]
        return " ".join(f"{text:>{SCORE}}" for text in texts)


def score_table(report: KeptReport, width: int | None) -> list[str]:
    """The lines of the table; none without scores. `width` as in `overview`."""
    blocks = _blocks(report.columns)
    if not blocks or not report.rows:
        return []
    node_width = min(LONGEST_NODE, max(4, *(len(node) for _, node, _ in report.rows)))
    rank_width = max(6, len(str(max(report.overall, default=0))) + 2)
    left = rank_width + 2 + node_width
    shown = blocks if width is None else _fitting(blocks, width - left)
    lines = ["Scores, 1.00 is best (rel: against the fastest rank, ind: against its own best)"]
    lines.append(" " * left + "".join(" " * GAP + f"{block.title:>{block.width}}" for block in shown))
    heads = [" ".join(f"{head:>{SCORE}}" for head in block.heads) for block in shown]
    lines.append(f"{'rank':>{rank_width}}  {'node':<{node_width}}" + _cells(shown, heads))
    named = {rank for verdict in report.verdicts for rank in verdict.ranks}
    upper, lower = _chosen(report, named)
    for place in upper + lower:
        rank, node, scores = report.rows[place]
        if lower and place == lower[0] and (others := len(report.overall) - len(upper + lower)):
            lines.append(f"{'…':>{rank_width}}  {others:,} other rank{'s' if others > 1 else ''}")
        name = node if len(node) <= node_width else "…" + node[1 - node_width :]
        cells = _cells(shown, [block.cell(scores) for block in shown])
        lines.append(f"{'>' if rank in named else ' '}{rank:>{rank_width - 1}}  {name:<{node_width}}{cells}")
    if len(report.overall) > 2:
        medians = [(*column["quantiles"], None, None, None, None)[3] for column in report.columns]
        cells = _cells(shown, [block.cell(medians) for block in shown])
        lines.append(f"{'median':>{rank_width}}  {'':<{node_width}}{cells}")
    return lines + _notes(report, len(blocks) - len(shown) + report.sections_left_out, named)


def _chosen(report: KeptReport, named: set[int]) -> tuple[list[int], list[int]]:
    """Places of the rows that are shown: the worst and those with a verdict, and the best."""
    places = range(len(report.rows))
    if len(report.overall) <= ALL:
        return list(places), []
    upper = [place for place in places if place < WORST or report.rows[place][0] in named]
    return upper, [place for place in places[-BEST:] if place not in upper]


def _blocks(columns: Sequence[Mapping[str, Any]]) -> list[_Block]:
    places: dict[str, dict[str, int]] = {}
    for place, column in enumerate(columns):
        title = "GPU" if column["of"] == "gpu" else str(column["section"])
        places.setdefault(title, {})[str(column["score"])] = place
    lowest = [min(column["quantiles"], default=1.0) for column in columns]
    return [
        _Block(title, found, min(lowest[place] for place in found.values()))
        for title, found in places.items()
    ]


def _fitting(blocks: Sequence[_Block], width: int) -> list[_Block]:
    """As many as there is room for, one at least: the GPU's, then those with the lowest scores."""
    kept: set[_Block] = set()
    for block in sorted(blocks, key=lambda block: (not block.is_gpu, block.lowest)):
        width -= GAP + block.width
        if width < 0 and kept:
            break
        kept.add(block)
    return [block for block in blocks if block in kept]


def _cells(blocks: Sequence[_Block], texts: Sequence[str]) -> str:
    return "".join(" " * GAP + f"{text:>{block.width}}" for block, text in zip(blocks, texts, strict=True))


def _notes(report: KeptReport, missing: int, named: set[int]) -> list[str]:
    notes = ["> named as slow"] if named else []
    if missing:
        notes.append(f"{missing} more section{'s' if missing > 1 else ''} in a wider terminal or with --json")
    return ["  " + "; ".join(notes)] if notes else []
