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
STEPS = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000)
"""Seconds between two ticks of a time axis."""
TICKS = 7


def page(
    found: Goodput,
    incidents: Sequence[Incident],
    links: Mapping[int, str],
    heat: HeatMap | None,
    facts: Sequence[str],
    title: str,
) -> str:
    """The whole page.

    Args:
        found: The ledger, with at least one attempt.
        incidents: Those of the same journal.
        links: Of incidents that have a report, by number: its address, quoted.
        heat: The straggler reports, if there are any.
        facts: On the whole job, in words.
        title: Which job; from outside, as all texts of the others.
    """
    scale = _Scale(found.begun, found.ended)
    fastest = max((rate.steps for rate in found.rates), default=0.0)
    values = {
        **{each.__name__: each for each in (duration, visible, _moment, _who)},
        "found": found,
        "links": links,
        "facts": facts,
        "title": title,
        "bins": BINS,
        "ticks": scale.ticks(),
        "attempts": [scale.part(each.begun, each.ended) for each in found.attempts],
        "cycles": _cycles(found.spans, scale),
        "pins": list(_pins(incidents, links, scale)),
        "stack": [each for each in _stack(found.spans, scale) if each[1]],
        "buckets": [(name, meaning) for name, meaning in BUCKETS.items() if found.seconds[name]],
        "shades": SHADES,
        "fastest": fastest,
        "rate": _rate(found.rates, fastest, scale) if fastest else "",
        "counted": COUNTED,
        "heat": heat,
        "incidents": incidents[-LISTED:],
        "left_out": max(0, len(incidents) - LISTED),
    }
    return render(Path(__file__).with_name("goodput_page.html.j2"), values)


def _moment(t: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    return clock(t, form) or "?"


def _who(incident: Incident) -> str:
    node = f"node {visible(incident.node, 60)}"
    return node if incident.rank is None else f"rank {incident.rank} ({node})"


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
    """Place, width, shade and text of each; of those that begin within a quarter of a bin the first is drawn."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for span in spans:
        if span.cycle is not None:
            place = span.run, span.cycle
            found[place] = found.get(place, (span.begun, 0.0))[0], span.ended
    shown: dict[int, tuple[float, float, int, str]] = {}
    for number, ((run, cycle), (begun, ended)) in enumerate(found.items()):
        text = f"attempt {run}, cycle {cycle}: {duration(ended - begun)} from {_moment(begun)}"
        x, width = scale.part(begun, ended)
        shown.setdefault(int(4 * x), (x, width, number % 2, text))
    return list(shown.values())


def _pins(
    incidents: Sequence[Incident], links: Mapping[int, str], scale: _Scale
) -> Iterator[tuple[float, str, str, int, Incident]]:
    """Place in percent, shade and address of each mark, and how many incidents it is for, with the last of them."""
    groups: dict[int, list[Incident]] = {}
    for each in incidents:
        groups.setdefault(min(int(scale.at(each.t) * PINS / BINS), PINS - 1), []).append(each)
    unlisted = {each.number for each in incidents[:-LISTED]}
    for number, group in groups.items():
        last = group[-1]
        address = "#incidents" if last.number in unlisted else f"#i{last.number}"
        address = links.get(last.number, address) if len(group) == 1 else address
        shade = "s-waits" if all(each.kind in PLANNED for each in group) else "s-culprit"
        yield 100 * number / PINS, shade, address, len(group), last


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


def _area(top: Sequence[float], foot: Sequence[float]) -> str:
    """The area between two lines of steps."""
    up = "".join(f"V{y:.1f}H{number + 1}" for number, y in enumerate(top))
    down = "".join(f"V{y:.1f}H{number}" for number, y in reversed(list(enumerate(foot))))
    return f"M0 {foot[0]:.1f}{up}{down}z"


def _rate(rates: Sequence[Rate], fastest: float, scale: _Scale) -> str:
    """The mean step rate of each bin; none where it is not known."""
    steps, known = [0.0] * BINS, [0.0] * BINS
    for rate in rates:
        for number, filled in scale.bins(rate.begun, rate.ended):
            steps[number] += filled * rate.steps / fastest
            known[number] += filled
    shares = [made / of if of > 0 else 0.0 for made, of in zip(steps, known, strict=True)]
    return _area([100 * (1 - share) for share in shares], [100.0] * BINS)
