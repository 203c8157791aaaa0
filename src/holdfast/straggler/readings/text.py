"""Straggler reports of a run as text for people: who is slow first, then the figures. Pure.

What always holds: for a terminal no line is wider than it, nothing in a name acts on it, and the ranks that matter are
in the first screen.

Does not cover: JSON; `KeptReport` gives that itself.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime

from holdfast.visible import escaped

from ..wording import ranks_text
from .kept import KeptReport
from .legible import legible
from .often import clock, many, often
from .score_table import score_table

VERDICTS_SHOWN = 5
REPORTS_SHOWN = 10
NODES_SHOWN = 5
LONGEST_WHO = 26


def overview(
    run_dir: str, told: Sequence[KeptReport], shown: KeptReport, of: int, width: int | None = None
) -> str:
    """One report of a run (`shown`), and what all of `told` say together; `of` is how many the run has.

    `width` is the terminal's in characters; None is for a file or another program, which get whole lines.
    """
    told, shown = [legible(report) for report in told], legible(shown)
    blocks = [
        [_folded(f"{escaped(run_dir)}: {_span(told, of)}", width), *_verdicts(shown, of, width)],
        [_folded(line, width) for line in _kernels(shown)],
        score_table(shown, width),
        [_folded(line, width, "    ") for line in _nodes(shown)],
        [_folded(line, width, "    ") for line in often(told)] if len(told) > 1 else [],
        list(_reports(told[-REPORTS_SHOWN:], len(told))) if len(told) > 1 else [],
    ]
    return "\n".join("".join(f"{line}\n" for line in block) for block in blocks if block)


def _span(told: Sequence[KeptReport], of: int) -> str:
    count = many(len(told), "straggler report")
    if len(told) < of:
        count = f"the last {len(told)} of {of} straggler reports"
    first, last = told[0], told[-1]
    if len(told) == 1:
        return f"{count}, {_moment(first.t)}"
    same_day = _moment(first.t)[:10] == _moment(last.t)[:10]
    return f"{count}, {_moment(first.t)} to {clock(last.t) if same_day else _moment(last.t)}"


def _verdicts(report: KeptReport, of: int, width: int | None) -> Iterator[str]:
    ranks = many(len(report.overall), "rank")
    step = "" if report.step is None else f", step {report.step}"
    made = "" if report.elapsed_ms is None else f", in {report.elapsed_ms:.1f} ms"
    yield _folded(
        f"Report {report.number} of {of}, {_moment(report.t)}, cycle {report.cycle}{step}: "
        f"{ranks} on {many(report.nodes, 'node')}{made}",
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


def _nodes(report: KeptReport) -> Iterator[str]:
    """What several ranks of one node have in common is the node's."""
    if report.nodes < 2 or report.nodes == len(report.overall):
        return
    bad = [node for node in report.worst_nodes if len(node["named"]) > 1 or node["low"] > 1]
    if not bad:
        yield f"Nodes: none of {report.nodes} stands out"
        return
    yield "Nodes that stand out"
    for node in bad[:NODES_SHOWN]:
        named, low, (rank, score) = node["named"], node["low"], node["worst"]
        what = [f"{len(named)} named ({ranks_text(named)})"] if named else []
        what += [f"{low} far below the median rank"] if low > len(named) else []
        most = 2 * max(len(named), low) >= node["ranks"]
        yield (
            f"  {node['node']}: of {many(node['ranks'], 'rank')} {', '.join(what)}; median {node['median']:.2f}, "
            f"worst {score:.2f} (rank {rank})" + (": look at the node, not at a rank" if most else "")
        )


def _reports(told: Sequence[KeptReport], of: int) -> Iterator[str]:
    title = "Reports" if len(told) == of else f"The last {len(told)} reports"
    yield f"{title:<22}cycle   ranks   lowest   median   named"
    for report in told:
        known = sorted(score for score in report.overall.values() if score is not None)
        lowest, median = (known[0], known[len(known) // 2]) if known else (None, None)
        who = ranks_text(rank for verdict in report.verdicts for rank in verdict.ranks)
        if len(who) > LONGEST_WHO:
            who = who[: LONGEST_WHO - 1] + "…"
        yield (
            f"{report.number:>5}  {_short_moment(report.t):<15}{report.cycle:>5}{len(report.overall):>8,}"
            f"{_score(lowest):>9}{_score(median):>9}   {who or '-'}"
        )


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


def _short_moment(t: float) -> str:
    return datetime.fromtimestamp(t).strftime("%m-%d %H:%M:%S")
