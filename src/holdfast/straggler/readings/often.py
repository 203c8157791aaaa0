"""Who was named how often, over all reports of a run: as text. Pure.

Does not cover: one report; that is `text`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from ..wording import ranks_text
from .kept import KeptReport, Named

SHOWN = 10
Times = dict[int, Named]
"""Of one rank, the number of each report that named it, and the verdict."""


def often(told: Sequence[KeptReport]) -> Iterator[str]:
    """A line for each rank that was named, most often first; ranks of a node that were named together are one."""
    named: dict[tuple[str, int], Times] = defaultdict(dict)
    for report in told:
        for verdict in report.verdicts:
            for rank in verdict.ranks:
                named[verdict.node, rank][report.number] = verdict
    if not named:
        yield f"No rank was named in any of {len(told)} reports"
        return
    yield f"Named in {len(told)} reports"
    together: dict[tuple[str, tuple[int, ...], str], list[int]] = defaultdict(list)
    for (node, rank), times in named.items():
        kinds = dict.fromkeys(verdict.section or verdict.kind for verdict in times.values())
        together[node, tuple(times), ", ".join(kinds)].append(rank)
    order = sorted(together, key=lambda who: (-len(who[1]), together[who]))
    for who in order[:SHOWN]:
        node, numbers, what = who
        worst = max(verdict.slowdown for rank in together[who] for verdict in named[node, rank].values())
        yield (
            f"  {ranks_text(together[who])} (node {node}): {many(len(numbers), 'time')}, {_when(numbers, told)}; "
            f"{what}; up to {worst:.2f}x"
        )
    if len(order) > SHOWN:
        yield f"  … and {many(sum(len(together[who]) for who in order[SHOWN:]), 'more rank')}"
    yield from _shared_nodes(named)


def _when(numbers: Sequence[int], told: Sequence[KeptReport]) -> str:
    at = {report.number: f"{clock(report.t)} (report {report.number})" for report in told}
    first, last = numbers[0], numbers[-1]
    return f"since {at[first]}" if last == told[-1].number else f"from {at[first]} to {at[last]}"


def _shared_nodes(named: Iterable[tuple[str, int]]) -> Iterator[str]:
    ranks: dict[str, list[int]] = defaultdict(list)
    for node, rank in named:
        ranks[node].append(rank)
    for node, those in sorted(ranks.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        if len(those) > 1:
            yield f"  node {node}: {len(those)} of its ranks were named ({ranks_text(those)})"


def many(count: int, what: str) -> str:
    """1 rank, 2 ranks."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def clock(t: float) -> str:
    """The time of day, by this machine's zone."""
    return datetime.fromtimestamp(t).strftime("%H:%M:%S")
