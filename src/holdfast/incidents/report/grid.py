"""All ranks as squares, as a picture for the page (SVG). Pure.

What always holds: ranks of one node stand side by side, every rank has a square, and 16,384 of them are about a
quarter of a megabyte.

Does not cover: who reads no pictures; the page has the same as a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from .grouping import grouped, rank_ranges
from .states import CULPRIT, MEANINGS

NUMBERED = 256
"""Up to so many ranks the squares carry their numbers, and a name to point at."""


def grid(states: Mapping[int, str], pids: Mapping[int, str]) -> str:
    """The picture. `pids` has a word on each rank for whoever points at its square."""
    if not states:
        return ""
    columns, cell = _measures(len(states))
    gap = 1 if cell < 12 else 3
    at = {rank: (index % columns * cell, index // columns * cell) for index, rank in enumerate(states)}
    left = 0 if len(states) <= NUMBERED else 46
    width, height = left + columns * cell + 4, -(-len(states) // columns) * cell + 4
    parts = [
        f'<svg class="grid" viewBox="-2 -2 {width} {height}" style="max-width:{width}px" role="img" '
        f'aria-label="One square for each of {len(states)} ranks; the list below says the same.">'
    ]
    for state, ranks in grouped(states, states.__getitem__):
        squares = "".join(
            f"M{at[rank][0] + left} {at[rank][1]}h{cell - gap}v{cell - gap}h{gap - cell}z" for rank in ranks
        )
        parts.append(f'<path class="s-{state}" d="{squares}"/>')
    parts += _numbers(states, pids, at, cell, gap) if not left else _rows(list(states), columns, cell)
    parts += [_mark(*at[rank], left, cell, gap) for rank, state in states.items() if state == CULPRIT]
    return "".join([*parts, "</svg>"])


def legend(states: Mapping[int, str]) -> str:
    """Which colour is what, how many, and which ranks: the picture in words."""
    found = dict(grouped(states, states.__getitem__))
    rows = "".join(
        f'<li><span class="key s-{state}"></span><b>{len(found[state])}</b> {escape(meaning)} '
        f'<span class="dim">rank{"s" if len(found[state]) > 1 else ""} {rank_ranges(found[state], 12)}</span></li>'
        for state, meaning in MEANINGS.items()
        if state in found
    )
    return f'<ul class="legend">{rows}</ul>'


def _measures(many: int) -> tuple[int, int]:
    """Squares in a row, a multiple of the usual 8 ranks of a node, and their size."""
    for upto, columns, cell in (
        (8, many, 40),
        (64, 8, 40),
        (NUMBERED, 16, 40),
        (1024, 32, 22),
        (4096, 64, 12),
    ):
        if many <= upto:
            return columns, cell
    return 128, 7


def _numbers(
    states: Mapping[int, str],
    words: Mapping[int, str],
    at: Mapping[int, tuple[int, int]],
    cell: int,
    gap: int,
) -> list[str]:
    size = cell - gap
    return [
        f"<g><title>{escape(f'rank {rank}: {MEANINGS[state]}' + (f', {words[rank]}' if rank in words else ''))}</title>"
        f'<rect x="{at[rank][0]}" y="{at[rank][1]}" width="{size}" height="{size}" fill="transparent"/>'
        f'<text class="n-{state}" x="{at[rank][0] + size / 2:g}" y="{at[rank][1] + size / 2 + 4:g}">{rank}</text></g>'
        for rank, state in states.items()
    ]


def _rows(ranks: list[int], columns: int, cell: int) -> list[str]:
    """The number of the first rank in a row, not of every row."""
    every = max(1, -(-14 // cell)) * (2 if cell < 10 else 1)
    return [
        f'<text class="row" x="40" y="{row * cell + max(9, cell // 2 + 3)}">{ranks[row * columns]}</text>'
        for row in range(0, -(-len(ranks) // columns), every)
    ]


def _mark(x: int, y: int, left: int, cell: int, gap: int) -> str:
    """A frame around the culprit that is seen among thousands, and without colours."""
    size, reach = cell - gap, 2 if cell > 12 else 6
    style = "hollow" if cell > 12 else f"s-{CULPRIT}"
    return (
        f'<rect class="mark {style}" x="{x + left - reach / 2:g}" y="{y - reach / 2:g}" '
        f'width="{size + reach}" height="{size + reach}"/>'
    )
