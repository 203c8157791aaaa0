"""The page of a job's goodput: a timeline of its cycles and incidents, and over the same time where it went.

goodput_page.html.j2 draws it; here are its values. What always holds is in :mod:`holdfast.html_page`. Shapes are in a
box of `BINS` by 100 that is stretched to the width of the screen, texts are beside them and are not stretched. Sizes
are bounded: a page is below 1 MB whatever the journal has.
Does not cover: the evidence of an incident (its report is linked); the score of each rank in each straggler report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..autoresume.policy import duration
from ..html_page import render
from ..incidents.report.wording import clock, visible
from ..journal.goodput import BUCKETS, PLANNED, Goodput, Rate, Span
from ..journal.incidents import Incident
from .heat_map import HeatMap

BINS = 240
"""Parts of the time."""
PINS = 80
"""Marks of incidents side by side: each is 4 pixels wide on a narrow screen."""
LISTED = 200
"""Incidents in the list."""
COUNTED = 12
"""Rows of failures by node, and by kind."""
TITLED = 256
"""Up to this many cycles each has a text to point at."""
SHADES = MappingProxyType(
    {
        "training": "s-moves",
        "lost": "s-culprit",
        "checkpointing": "c0",
        "validation": "c2",
        "data": "c1",
        "start-up": "c3",
        "undetected": "s-failed",
        "restart": "c6",
        "stopping": "c4",
        "waiting": "s-finished",
        "unknown": "s-nodata",
    }
)
"""The colour of each bucket."""
HEAT = ((0.95, "h0"), (0.9, "h1"), (0.8, "h2"), (0.7, "h3"), (-1.0, "h4"))
"""The least score of each shade."""
STEPS = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000)
"""Seconds between two ticks of a time axis."""
TICKS = 7


def page(
    found: Goodput,
    incidents: Sequence[Incident],
    links: Mapping[int, str],
    heat: HeatMap | None,
    *,
    title: str,
) -> str:
    """The whole page.

    Args:
        found: The ledger, with at least one attempt.
        incidents: Those of the same journal.
        links: Of incidents that have a report, by number: its address, quoted.
        heat: The straggler reports, if there are any.
        title: Which job; from outside, as all texts of the others.
    """
    scale = _Scale(found.begun, found.ended)
    stack = _stack(found.spans, scale)
    fastest = max((rate.steps for rate in found.rates), default=0.0)
    values = {
        "title": visible(title),
        "found": found,
        "span": f"{_moment(found.begun)} to {_moment(found.ended)}",
        "wall": duration(found.wall),
        "facts": _facts(found),
        "bins": BINS,
        "ticks": scale.ticks(),
        "attempts": [scale.part(each.begun, each.ended) for each in found.attempts],
        "cycles": _cycles(found.spans, scale),
        "pins": list(_pins(incidents, links, scale)),
        "stack": [(SHADES[bucket], shape, bucket) for bucket, shape in stack if shape],
        "buckets": [
            (
                SHADES[bucket],
                bucket,
                duration(spent),
                f"{spent / (found.wall or 1.0):.1%}",
                meaning.replace("`", ""),
            )
            for bucket, meaning in BUCKETS.items()
            if (spent := found.seconds[bucket])
        ],
        "rate": _rate(found.rates, fastest, scale) if fastest else "",
        "fastest": f"{fastest:.3g}",
        "failures": [
            (title, _bars(counts), max(0, len(counts) - COUNTED))
            for title, counts in (("By node", found.by_node), ("By kind", found.by_kind))
            if counts
        ],
        "heat": _heat(heat) if heat else None,
        "incidents": [_row(each, links) for each in incidents[-LISTED:]],
        "left_out": max(0, len(incidents) - LISTED),
    }
    return render(Path(__file__).with_name("goodput_page.html.j2"), values)


def _moment(t: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    return clock(t, form) or "?"


def _facts(found: Goodput) -> list[str]:
    def several(count: int, name: str) -> str:
        return f"{count} {name}{'s' if count != 1 else ''}"

    facts = [
        several(len(found.attempts), "attempt"),
        several(found.cycles, "cycle"),
        several(found.failures, "failure"),
    ]
    for title, seconds in (
        ("one failure in", found.seconds_between_failures),
        ("noticed after", found.seconds_to_detect),
        ("trained again after", found.seconds_to_recover),
    ):
        facts += [f"{title} {duration(seconds)}"] if seconds is not None else []
    return [
        *facts,
        *([f"{several(found.lost_steps, 'step')} done again"] if found.lost_steps is not None else []),
    ]


def _bars(counts: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """Name, count and length (0 to 1) of the first rows, the largest first."""
    most = max(counts.values())
    return [(visible(name, 60), count, f"{count / most:.3f}") for name, count in [*counts.items()][:COUNTED]]


class _Scale:
    """From unix seconds to places on the time axis, which has `BINS` bins."""

    def __init__(self, begun: float, ended: float) -> None:
        self.begun = begun
        self.wall = (ended - begun) or 1.0

    def at(self, t: float) -> float:
        """The place of this moment."""
        return min(max((t - self.begun) / self.wall * BINS, 0.0), float(BINS))

    def part(self, begun: float, ended: float) -> tuple[float, float]:
        """Place and width, with as many digits as a screen can show."""
        x = round(self.at(begun), 2)
        return x, max(round(self.at(ended) - x, 2), 0.1)

    def bins(self, begun: float, ended: float) -> Iterator[tuple[int, float]]:
        """Each bin that this time touches, and which share of the bin it fills."""
        first, last = self.at(begun), self.at(ended)
        for number in range(int(first), min(math.ceil(last), BINS)):
            yield number, min(last, number + 1) - max(first, number)

    def ticks(self) -> list[tuple[str, str]]:
        """At round moments: the place in percent, and the time."""
        step: float = next((step for step in STEPS if self.wall <= step * TICKS), 864000)
        while self.wall > step * TICKS:
            step *= 2
        form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m-%d"
        moments = [math.ceil(self.begun / step) * step + number * step for number in range(TICKS + 1)]
        return [
            (f"{100 * self.at(t) / BINS:.2f}", clock(t, form if step < 60 or t % 86400 else "%m-%d"))
            for t in moments
            if self.begun <= t <= self.begun + self.wall
        ]


def _cycles(spans: Sequence[Span], scale: _Scale) -> list[tuple[float, float, int, str]]:
    """Place, width, shade and text of each; those that begin within the same tenth of a bin are drawn once."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for span in spans:
        if span.cycle is not None:
            place = span.run, span.cycle
            found[place] = found.get(place, (span.begun, 0.0))[0], span.ended
    shown: dict[float, tuple[float, float, int, str]] = {}
    for number, ((run, cycle), (begun, ended)) in enumerate(found.items()):
        text = f"attempt {run}, cycle {cycle}: {duration(ended - begun)} from {_moment(begun)}"
        x, width = scale.part(begun, ended)
        shown.setdefault(round(x, 1), (x, width, number % 2, text if len(found) <= TITLED else ""))
    return list(shown.values())


def _pins(
    incidents: Sequence[Incident], links: Mapping[int, str], scale: _Scale
) -> Iterator[tuple[str, str, str, str]]:
    """Place in percent, shade, address and text of each mark. Incidents that are close together have one."""
    groups: dict[int, list[Incident]] = {}
    for each in incidents:
        groups.setdefault(min(int(scale.at(each.t) * PINS / BINS), PINS - 1), []).append(each)
    listed = {each.number for each in incidents[-LISTED:]}
    for number, group in groups.items():
        last = group[-1]
        several = f"{len(group)} incidents, the last: " if len(group) > 1 else ""
        address = links.get(last.number, "") if len(group) == 1 else ""
        anchor = f"#i{last.number}" if last.number in listed else "#incidents"
        shade = "s-waits" if all(each.kind in PLANNED for each in group) else "s-culprit"
        text = (
            f"{several}{last.number} {last.kind}, {_who(last)}, {_moment(last.t)}: {visible(last.what, 120)}"
        )
        yield f"{100 * number / PINS:.2f}", shade, address or anchor, text


def _who(incident: Incident) -> str:
    node = f"node {visible(incident.node, 60)}"
    return node if incident.rank is None else f"rank {incident.rank} ({node})"


def _row(incident: Incident, links: Mapping[int, str]) -> tuple[int, str, str, str, str, str]:
    """Number, address of the report, moment, what happened, and what came of it."""
    after = [("noticed after", incident.unnoticed_seconds), ("trained again after", incident.resume_seconds)]
    facts = [f"{title} {duration(seconds)}" for title, seconds in after if seconds]
    where = f"{visible(incident.kind, 40)}, {_who(incident)}, cycle {incident.cycle}"
    return (
        incident.number,
        links.get(incident.number, ""),
        _moment(incident.t),
        where,
        visible(incident.what, 300),
        "; ".join([*facts, visible(incident.outcome, 200)]),
    )


def _stack(spans: Sequence[Span], scale: _Scale) -> list[tuple[str, str]]:
    """The share of each bucket in each bin, one above the other, as one shape per bucket: up its top, back its foot."""
    shares = {bucket: [0.0] * BINS for bucket in BUCKETS}
    for span in spans:
        length = span.ended - span.begun
        for number, filled in scale.bins(span.begun, span.ended):
            for bucket, spent in span.seconds.items():
                shares[bucket][number] += filled * spent / length
    foot = [100.0] * BINS
    found = []
    for bucket, values in shares.items():
        top = [y - 100 * share for y, share in zip(foot, values, strict=True)]
        found.append((bucket, _area(top, foot) if any(values) else ""))
        foot = top
    return found


def _area(top: Sequence[float], foot: Sequence[float], first: int = 0) -> str:
    """The area between two lines of steps, from bin `first` on."""
    up = "".join(f"V{y:.1f}H{first + number + 1}" for number, y in enumerate(top))
    down = "".join(f"V{y:.1f}H{first + number}" for number, y in reversed(list(enumerate(foot))))
    return f"M{first} {foot[0]:.1f}{up}{down}z"


def _rate(rates: Sequence[Rate], fastest: float, scale: _Scale) -> str:
    """The mean step rate of each bin; none where it is not known."""
    steps, known = [0.0] * BINS, [0.0] * BINS
    for rate in rates:
        for number, filled in scale.bins(rate.begun, rate.ended):
            steps[number] += filled * rate.steps
            known[number] += filled
    tops = [
        100 * (1 - made / (of * fastest)) if of > 0 else None for made, of in zip(steps, known, strict=True)
    ]
    shapes, first = [], 0
    while first < BINS:
        last = first
        while last < BINS and tops[last] is not None:
            last += 1
        if last > first:
            top = [y for y in tops[first:last] if y is not None]
            shapes.append(_area(top, [100.0] * len(top), first))
        first = last + 1
    return "".join(shapes)


def _heat(heat: HeatMap) -> dict[str, Any]:
    """Cells of the same shade side by side are one."""
    shapes: dict[str, list[str]] = {}
    for y, row in enumerate(heat.cells):
        shades = [
            next((shade for least, shade in HEAT if score >= least), "") if score is not None else ""
            for score in row
        ]
        begun = 0
        for x in range(1, len(shades) + 1):
            if x == len(shades) or shades[x] != shades[begun]:
                if shades[begun]:
                    shapes.setdefault(shades[begun], []).append(f"M{begun} {y}H{x}v1H{begun}z")
                begun = x
    every = -(-len(heat.rows) // 12)
    middle = heat.columns[len(heat.columns) // 2][0]
    return {
        "rows": len(heat.rows),
        "of_one": heat.rows[0][0] == heat.rows[0][1],
        "columns": len(heat.columns),
        "height": max(24 * len(heat.rows) if len(heat.rows) <= 12 else 4 * len(heat.rows), 48),
        "shapes": [(shade, "".join(found)) for shade, found in sorted(shapes.items())],
        "labels": [
            (
                f"{100 * (number + 0.5) / len(heat.rows):.2f}",
                str(first) if first == last else f"{first}–{last}",
            )
            for number, (first, last) in enumerate(heat.rows)
            if number % every == 0
        ],
        "from": _moment(heat.columns[0][0], "%m-%d %H:%M"),
        "middle": _moment(middle, "%m-%d %H:%M") if len(heat.columns) > 2 else "",
        "to": _moment(heat.columns[-1][1], "%m-%d %H:%M"),
        "reports": heat.reports,
        "legend": [(shade, f"{least:g} and more" if least > 0 else "below 0.7") for least, shade in HEAT],
    }
