"""report.txt: an incident for a person, in at most `MOST` lines whatever happened.

The first lines are the whole story: who, where, where the others are, and the verdict. What follows says how we know.
Pure. What always holds: no line is longer than `LONGEST` columns or has a character that a terminal acts on; what does
not fit is counted, and stands in incident.json.

Does not cover: everything that is known; that is incident.json.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ..evidence import DIAGNOSE, Case, RankEvidence
from ..verdict import Verdict
from . import sections
from .heading import culprit_of, headline, others_in_words, where_it_is, which
from .wording import LONGEST, visible

MOST = 40
"""Lines at most."""

GROUPS = 3
"""Groups of other ranks in the first lines."""

WIDTH = 120
"""Columns at which sentences are broken."""


def report_lines(
    case: Case, verdict: Verdict, *, number: int = 0, folder: str = "", width: int = WIDTH
) -> list[str]:
    """The report. `folder` is where it is kept, where it is; `number` is the folder's."""
    width = min(max(width, 40), LONGEST)
    head = head_lines(case, verdict, width)
    foot = list(_foot(case, number, folder))
    room = MOST - len(head) - len(foot)
    body = fitted([found for found in sections.of(case, verdict) if found.lines], room)
    return [shortened(line) for line in (*head, *body, *foot)]


def head_lines(case: Case, verdict: Verdict, width: int = WIDTH) -> list[str]:
    """The block that a person reads first."""
    culprit = culprit_of(case, verdict)
    lines = [headline(case, verdict)]
    if culprit:
        lines += [f"  {line}" for line in where_it_is(culprit)]
    lines += [f"  {line}" for line in others_in_words(case, verdict, GROUPS)]
    said = f"verdict: {visible(verdict.sentence, 600)} (confidence {verdict.confidence})"
    broken = textwrap.wrap(said, width - 2, subsequent_indent="  ", break_on_hyphens=False)
    return [*lines, *(f"  {line}" for line in broken[:5])]


def fitted(found: Sequence[sections.Section], room: int) -> list[str]:
    """The sections in `room` lines: each gets its share in the order of weight, then what is left."""
    given = dict.fromkeys(range(len(found)), 0)
    by_weight = sorted(given, key=lambda index: found[index].weight)
    for wanted in (lambda s: s.share, lambda s: len(s.lines)):
        for index in by_weight:
            section = found[index]
            free = room - sum(many + 1 for many in given.values() if many)
            free -= 0 if given[index] else 1  # its title
            given[index] += max(0, min(min(wanted(section), len(section.lines)) - given[index], free))
    lines: list[str] = []
    for index, section in enumerate(found):
        lines += _cut(section, given[index])
    return lines


def _cut(section: sections.Section, many: int) -> list[str]:
    """The title and so many lines; the title says how many are missing."""
    if not many:
        return []
    missing = len(section.lines) - many + section.missing
    more = f" ({missing} more in incident.json)" if missing else ""
    return [f"  {section.title}{more}:", *(f"    {line}" for line in section.lines[:many])]


def _foot(case: Case, number: int, folder: str) -> Iterator[str]:
    took = max((node.took for node in case.nodes), default=0.0)
    before = ", before any process was ended" if _before(case) else ""
    yield f"  evidence taken in {took:.2f} s{before}; {', '.join(which(case, number))}"
    if folder:
        path = visible(folder, 110)
        yield f"  everything: {path}/incident.json"
        yield f"  as a page:  holdfast incidents {path} --html incident.html"


def _before(case: Case) -> bool:
    """Whether all ranks lived when the evidence was taken, and had to be ended after it."""
    if {node.trigger for node in case.nodes} <= {DIAGNOSE}:
        return False
    ranks: Sequence[RankEvidence] = case.ranks
    return bool(ranks) and not any(rank.exit and rank.exit.ago >= 0 for rank in ranks)


def shortened(line: str) -> str:
    """The line, cut where it is longer than `LONGEST`."""
    return line if len(line) <= LONGEST else line[: LONGEST - 2] + " …"
