"""Straggler reports of a run as text for people: who is slow first, then the figures.

What always holds: for a terminal no line is wider than it, and the ranks that matter are in the first screen. In the
table of scores are the ranks with a verdict and the worst ones; sections without room are left out, those with the best
scores first, and it says how many.

Does not cover: JSON; `KeptReport` gives that itself. The scores of all ranks, which the journal does not have.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from holdfast.visible import escaped

from ..report import Verdict, ranks_text
from .kept import KeptReport

ALL, WORST, BEST = 16, 10, 3
"""Up to `ALL` ranks are all in the table; else the worst, the best, and those with a verdict."""
LONGEST_NODE = 20
SCORE, BLOCK, GAP = 5, 12, 2
"""Characters of a score, of the scores of one thing (relative and individual), and between columns."""
VERDICTS_SHOWN = 5
NAMED_SHOWN = 10


def overview(
    run_dir: str, told: Sequence[KeptReport], shown: KeptReport, of: int, width: int | None = None
) -> str:
    """One report of a run (`shown`), and what all of `told` say together; `of` is how many the run has.

    `width` is the terminal's in characters; None is for a file or another program, which get whole lines.
    """
    blocks = [
        [_folded(f"{escaped(run_dir)}: {_span(told, of)}", width), *_verdicts(shown, of, width)],
        [_folded(line, width) for line in _kernels(shown)],
        _score_table(shown, width),
        [_folded(line, width, "    ") for line in _often(told)] if len(told) > 1 else [],
    ]
    return "\n".join("".join(f"{line}\n" for line in block) for block in blocks if block)


def _span(told: Sequence[KeptReport], of: int) -> str:
    count = _many(len(told), "straggler report")
    if len(told) < of:
        count = f"the last {len(told)} of {of} straggler reports"
    first, last = told[0], told[-1]
    if len(told) == 1:
        return f"{count}, {_moment(first.t)}"
    same_day = _moment(first.t)[:10] == _moment(last.t)[:10]
    return f"{count}, {_moment(first.t)} to {_clock(last.t) if same_day else _moment(last.t)}"


def _verdicts(report: KeptReport, of: int, width: int | None) -> Iterator[str]:
    ranks = _many(len(report.overall), "rank")
    made = "" if report.elapsed_ms is None else f", in {report.elapsed_ms:.1f} ms"
    yield _folded(
        f"Report {report.number} of {of}, {_moment(report.t)}, cycle {report.cycle}: "
        f"{ranks} on {_many(report.nodes, 'node')}{made}",
        width,
    )
    yield ""
    in_full = len(report.verdicts) if width is None else VERDICTS_SHOWN
    for verdict in report.verdicts[:in_full]:
        yield _folded(f"  {verdict}", width, "      ")
    if others := report.verdicts[in_full:]:
        who = ranks_text(rank for verdict in others for rank in verdict.ranks)
        yield _folded(f"  and {len(others)} more: {who} (in full with --json)", width, "      ")
    if not report.verdicts:
        yield "  no rank is named as slow"
    for why in report.withheld:
        yield _folded(f"  not judged: {why}", width, "      ")


def _kernels(report: KeptReport) -> Iterator[str]:
    """The source of kernel times, and how much it saw; of all ranks that have a report together."""
    where = f" on rank {report.holders[0]}" if len(report.holders) == 1 < len(report.overall) else ""
    sources = sorted({str(facts.get("source", "none")) for facts in report.kernels})
    parts = [", ".join(sources)]
    parts += [
        f"{sum(known):,} {name}"
        for name in ("records", "dropped")
        if (known := [int(facts[name]) for facts in report.kernels if _is_number(facts.get(name))])
    ]
    shares = [float(facts["share"]) for facts in report.kernels if _is_number(facts.get("share"))]
    if shares:
        parts.append(f"{100 * min(shares):.0f} % of GPU time scored")
    whys = [str(facts[name]) for name in ("reason", "note") for facts in report.kernels if facts.get(name)]
    yield "; ".join([f"GPU kernels{where}: {', '.join(parts)}", *dict.fromkeys(whys)])


def _score_table(report: KeptReport, width: int | None) -> list[str]:
    """The lines of the table; none without scores."""
    blocks: dict[str, dict[str, int]] = defaultdict(dict)  # of a GPU or section, the place of each score
    for place, column in enumerate(report.columns):
        blocks["GPU" if column["of"] == "gpu" else column["section"]][column["score"]] = place
    if not blocks or not report.rows:
        return []
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    digits = max(4, *(len(str(rank)) for rank in report.overall))
    nodes = [len(node) for _, node, _ in report.rows]
    left = 2 + digits + GAP + min(LONGEST_NODE, max(4, *nodes))
    shown = blocks if width is None else _fitting(report, blocks, width - left)
    table = Table(box=None, pad_edge=False)
    table.add_column(f"\n  {'rank':>{digits}}", no_wrap=True)
    table.add_column("\nnode", no_wrap=True)
    for title, places in shown.items():
        heads = " ".join(f"{score[:3]:>{SCORE}}" for score in places)
        table.add_column(Text(f"{_tail(title, BLOCK)}\n{heads}"), justify="right", no_wrap=True)

    def add(rank: str, node: str, scores: Sequence[float | None] = ()) -> None:
        cells = [
            " ".join(f"{_score(scores[place]):>{SCORE}}" for place in places.values())
            for places in shown.values()
            if scores
        ]
        table.add_row(rank, Text(_tail(node, LONGEST_NODE)), *cells)

    named = {rank for verdict in report.verdicts for rank in verdict.ranks}
    upper, lower = _chosen(report, named)
    for place in upper + lower:
        if lower and place == lower[0] and (others := len(report.overall) - len(upper + lower)):
            add(f"  {'…':>{digits}}", _many(others, "other rank"))
        rank, node, scores = report.rows[place]
        add(f"{'>' if rank in named else ' '} {rank:>{digits}}", node, scores)
    if len(report.overall) > 2:
        add("median", "", [(*column["quantiles"], None, None, None, None)[3] for column in report.columns])
    filled = io.StringIO()
    Console(file=filled, width=width or 100_000, color_system=None, highlight=False).print(table)
    lines = ["Scores, 1.00 is best (rel: against the fastest rank, ind: against its own best)"]
    lines += [line.rstrip() for line in filled.getvalue().splitlines()]
    notes = ["> named as slow"] if named else []
    if missing := len(blocks) - len(shown) + report.sections_left_out:
        notes.append(f"{_many(missing, 'more section')} in a wider terminal or with --json")
    return lines + (["  " + "; ".join(notes)] if notes else [])


def _chosen(report: KeptReport, named: set[int]) -> tuple[list[int], list[int]]:
    """Places of the rows that are shown: the worst and those with a verdict, and the best."""
    places = range(len(report.rows))
    if len(report.overall) <= ALL:
        return list(places), []
    upper = [place for place in places if place < WORST or report.rows[place][0] in named]
    return upper, [place for place in places[-BEST:] if place not in upper]


def _fitting(
    report: KeptReport, blocks: Mapping[str, dict[str, int]], width: int
) -> dict[str, dict[str, int]]:
    """As many as there is room for, one at least: the GPU's, then those with the lowest scores."""

    def lowest(title: str) -> float:
        return min(min(report.columns[place]["quantiles"], default=1.0) for place in blocks[title].values())

    order = sorted(blocks, key=lambda title: (title != "GPU", lowest(title)))
    kept = order[: max(1, width // (GAP + BLOCK))]
    return {title: places for title, places in blocks.items() if title in kept}


def _tail(name: str, width: int) -> str:
    return name if len(name) <= width else "…" + name[1 - width :]


def _often(told: Sequence[KeptReport]) -> Iterator[str]:
    """A line for each rank that was named, most often first; ranks of a node that were named together are one."""
    # By node and rank, the number of each report that named it, and the verdict.
    named: dict[tuple[str, int], dict[int, Verdict]] = defaultdict(dict)
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
    for who in order[:NAMED_SHOWN]:
        node, numbers, what = who
        worst = max(verdict.slowdown for rank in together[who] for verdict in named[node, rank].values())
        yield (
            f"  {ranks_text(together[who])} (node {node}): {_many(len(numbers), 'time')}, {_when(numbers, told)}; "
            f"{what}; up to {worst:.2f}x"
        )
    if len(order) > NAMED_SHOWN:
        yield f"  … and {_many(sum(len(together[who]) for who in order[NAMED_SHOWN:]), 'more rank')}"


def _when(numbers: Sequence[int], told: Sequence[KeptReport]) -> str:
    at = {report.number: f"{_clock(report.t)} (report {report.number})" for report in told}
    first, last = numbers[0], numbers[-1]
    return f"since {at[first]}" if last == told[-1].number else f"from {at[first]} to {at[last]}"


def _folded(line: str, width: int | None, further: str = "  ") -> str:
    if width is None or len(line) <= width:
        return line
    return "\n".join(
        textwrap.wrap(
            line, width, subsequent_indent=further, drop_whitespace=True, break_on_hyphens=False
        )
    )  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _moment(t: float) -> str:
    return datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M:%S")


def _many(count: int, what: str) -> str:
    """1 rank, 2 ranks."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _clock(t: float) -> str:
    """The time of day, by this machine's zone."""
    return datetime.fromtimestamp(t).strftime("%H:%M:%S")
