"""The last minute of the ranks as a picture for the page (SVG): a lane for each, sections as bars. Pure.

Does not cover: what is in a lane; that is `lanes`. Nodes' clocks: each lane counts back from when its own node looked.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .lanes import WINDOW, Lane
from .wording import seconds, visible

LEFT, WIDTH, HEIGHT, TOP = 84, 900, 22, 8
COLOURS = 8
"""Classes c0 to c7 of the page's style; further names share the last one."""


def timeline(lanes: Sequence[Lane], culprit: int | None) -> str:
    """The picture and its legend; nothing where no ring tells anything."""
    if not lanes:
        return ""
    names = _names(lanes)
    bottom = TOP + len(lanes) * HEIGHT
    parts = [
        f'<svg class="time" viewBox="0 0 {LEFT + WIDTH + 12} {bottom + 26}" role="img" '
        f'aria-label="The last {WINDOW:.0f} seconds of {len(lanes)} ranks, from their own reports.">',
        _axis(bottom),
    ]
    for index, lane in enumerate(lanes):
        parts.append(_lane(lane, TOP + index * HEIGHT, names, lane.rank == culprit))
    return "".join([*parts, "</svg>", _legend(lanes, names)])


def _names(lanes: Sequence[Lane]) -> dict[str, int]:
    """A colour for each section, those with the longest bars first: they differ most."""
    lengths: dict[str, float] = {}
    for lane in lanes:
        for bar in lane.bars:
            lengths[bar.name] = lengths.get(bar.name, 0.0) + bar.begun - bar.ended
    order = sorted(lengths, key=lambda name: (-lengths[name], name))
    return {name: min(index, COLOURS - 1) for index, name in enumerate(order)}


def _x(ago: float) -> float:
    return round(LEFT + (1 - min(max(ago, 0.0), WINDOW) / WINDOW) * WIDTH, 1)


def _axis(bottom: int) -> str:
    parts = []
    for ago in range(0, int(WINDOW) + 1, 10):
        x = _x(ago)
        text = "0 s" if ago == 0 else f"−{ago} s"
        parts.append(f'<path class="axis" d="M{x:g} {TOP - 4}V{bottom + 4}"/>')
        parts.append(f'<text class="tick" x="{x:g}" y="{bottom + 18}">{text}</text>')
    return "".join(parts)


def _lane(lane: Lane, y: int, names: dict[str, int], is_culprit: bool) -> str:
    mark = "▸ " if is_culprit else ""
    style = "lane culprit" if is_culprit else "lane"
    parts = [f'<g><text class="{style}" x="{LEFT - 8}" y="{y + 14}">{mark}rank {lane.rank}</text>']
    if lane.since < WINDOW:
        parts.append(
            f'<path class="unknown" d="M{LEFT} {y + 9}H{_x(lane.since):g}"><title>not told</title></path>'
        )
    for name in dict.fromkeys(bar.name for bar in lane.bars):
        bars = [bar for bar in lane.bars if bar.name == name]
        shapes = "".join(
            f"M{_x(bar.begun):g} {y + 2 + 3 * bar.depth}"
            f"H{max(_x(bar.ended), _x(bar.begun) + 0.4):g}v{14 - 3 * bar.depth}H{_x(bar.begun):g}z"
            for bar in bars
        )
        longest = max(bar.begun - bar.ended for bar in bars)
        still = ", still open" if any(bar.open for bar in bars) else ""
        what = escape(
            f"rank {lane.rank}: {visible(name, 60)}, {len(bars)} times, longest {seconds(longest)}{still}"
        )
        parts.append(f'<path class="c{names[name]}" d="{shapes}"><title>{what}</title></path>')
    return "".join([*parts, *_moments(lane, y), "</g>"])


def _moments(lane: Lane, y: int) -> list[str]:
    """Steps and heartbeats as ticks below the bars, checkpoints as diamonds on them."""

    def at(*kinds: str) -> list[float]:
        return [_x(ago) for kind, ago in lane.moments if kind in kinds and ago <= WINDOW]

    parts = []
    if steps := at("step"):
        parts.append(f'<path class="step" d="{"".join(f"M{x:g} {y + 16}v5" for x in steps)}"/>')
    if beats := at("heartbeat", "mark", "connect", "finish"):
        parts.append(f'<path class="beat" d="{"".join(f"M{x:g} {y + 16}v3" for x in beats)}"/>')
    if saved := at("checkpoint"):
        shapes = "".join(f"M{x:g} {y + 3}l5 6l-5 6l-5 -6z" for x in saved)
        parts.append(f'<path class="saved" d="{shapes}"><title>checkpoint</title></path>')
    return parts


def _legend(lanes: Sequence[Lane], names: dict[str, int]) -> str:
    shown = [
        f'<li><span class="key c{colour}"></span>{escape(visible(name, 60))}</li>'
        for name, colour in list(names.items())[:16]
    ]
    kinds = {kind for lane in lanes for kind, _ in lane.moments}
    for kind, style, text in (("step", "step", "end of a step"), ("heartbeat", "beat", "heartbeat")):
        if kind in kinds:
            shown.append(f'<li><span class="key tickkey k-{style}"></span>{text}</li>')
    if "checkpoint" in kinds:
        shown.append('<li><span class="k-saved">◆</span>checkpoint</li>')
    return f'<ul class="legend row">{"".join(shown)}</ul>'
