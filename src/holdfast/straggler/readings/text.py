"""Straggler reports of a run as text for people: who is slow first, then the figures. Pure.

What always holds: for a terminal no line is wider than it, and the ranks that matter are in the first screen.

Does not cover: JSON; `KeptReport` gives that itself.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from .kept import KeptReport, Named
from .score_table import score_table

NAMED_SHOWN, VERDICTS_SHOWN = 10, 5
REPORTS_SHOWN = 10
NODES_SHOWN = 5
LONGEST_WHO = 26


def overview(
    run_dir: str, told: Sequence[KeptReport], shown: KeptReport, of: int, width: int | None = None
) -> str:
    """One report of a run (`shown`), and what all of `told` say together; `of` is how many the run has.

    `width` is the terminal's in characters; None is for a file or another program, which get whole lines.
    """
    blocks = [
        [_folded(f"{run_dir}: {_span(told, of)}", width), *_verdicts(shown, of, width)],
        [_folded(line, width) for line in _kernels(shown)],
        score_table(shown, width),
        [_folded(line, width, "    ") for line in _nodes(shown)],
        [_folded(line, width, "    ") for line in _often(told)] if len(told) > 1 else [],
        list(_reports(told[-REPORTS_SHOWN:], len(told))) if len(told) > 1 else [],
    ]
    return "\n".join("".join(f"{line}\n" for line in block) for block in blocks if block)


def _span(told: Sequence[KeptReport], of: int) -> str:
    many = _many(len(told), "straggler report")
    if len(told) < of:
        many = f"the last {len(told)} of {of} straggler reports"
    first, last = told[0], told[-1]
    if len(told) == 1:
        return f"{many}, {_moment(first.t)}"
    same_day = _moment(first.t)[:10] == _moment(last.t)[:10]
    return f"{many}, {_moment(first.t)} to {_clock(last.t) if same_day else _moment(last.t)}"


def _verdicts(report: KeptReport, of: int, width: int | None) -> Iterator[str]:
    ranks = _many(len(report.overall), "rank")
    step = "" if report.step is None else f", step {report.step}"
    made = "" if report.elapsed_ms is None else f", in {report.elapsed_ms:.1f} ms"
    yield _folded(
        f"Report {report.number} of {of}, {_moment(report.t)}, cycle {report.cycle}{step}: "
        f"{ranks} on {_many(report.nodes, 'node')}{made}",
        width,
    )
    yield ""
    in_full = len(report.verdicts) if width is None else VERDICTS_SHOWN
    for verdict in report.verdicts[:in_full]:
        yield _folded(f"  {verdict}", width, "      ")
    if others := report.verdicts[in_full:]:
        who = _ranks(verdict.rank for verdict in others)
        yield _folded(f"  and {len(others)} more: {who} (in full with --json)", width, "      ")
    if not report.verdicts:
        yield "  no rank is named as slow"
    for why in report.withheld:
        yield _folded(f"  not judged: {why}", width, "      ")


def _kernels(report: KeptReport) -> Iterator[str]:
    """The source of kernel times, and how much it saw; the sources of several ranks together."""
    sources = sorted({str(facts.get("source", "none")) for facts in report.kernels})
    notes = sorted({str(facts["note"]) for facts in report.kernels if facts.get("note")})
    if sources == ["none"]:
        yield f"GPU kernels: none{': ' if notes else ''}{'; '.join(notes)}"
        return
    parts = [", ".join(sources)]
    parts += [
        f"{sum(known):,} {name}"
        for name in ("records", "dropped")
        if (known := [int(facts[name]) for facts in report.kernels if _is_number(facts.get(name))])
    ]
    shares = [float(facts["share"]) for facts in report.kernels if _is_number(facts.get("share"))]
    if shares:
        parts.append(f"{min(shares):.0%} of GPU time scored".replace("%", " %"))
    yield f"GPU kernels: {', '.join(parts)}{'; ' if notes else ''}{'; '.join(notes)}"


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
        what = [f"{len(named)} named ({_ranks(named)})"] if named else []
        what += [f"{low} far below the median rank"] if low > len(named) else []
        most = 2 * max(len(named), low) >= node["ranks"]
        yield (
            f"  {node['node']}: of {_many(node['ranks'], 'rank')} {', '.join(what)}; median {node['median']:.2f}, "
            f"worst {score:.2f} (rank {rank})" + (": look at the node, not at a rank" if most else "")
        )


def _often(told: Sequence[KeptReport]) -> Iterator[str]:
    """Who was named how often, over all reports."""
    named: dict[tuple[int, str], list[tuple[KeptReport, Named]]] = defaultdict(list)
    for report in told:
        for verdict in report.verdicts:
            named[verdict.rank, verdict.node].append((report, verdict))
    if not named:
        yield f"No rank was named in any of {len(told)} reports"
        return
    yield f"Named in {len(told)} reports"
    order = sorted(named, key=lambda who: (-len(named[who]), who))
    for rank, node in order[:NAMED_SHOWN]:
        times = named[rank, node]
        kinds = dict.fromkeys(verdict.section or verdict.kind for _, verdict in times)
        since, until = times[0][0], times[-1][0]
        when = "since" if until is told[-1] else f"until {_clock(until.t)}, since"
        worst = max(verdict.slowdown for _, verdict in times)
        yield (
            f"  rank {rank} (node {node}): {len({report.number for report, _ in times})} times, {when} "
            f"{_clock(since.t)} (report {since.number}); {', '.join(kinds)}; up to {worst:.2f}x"
        )
    if len(order) > NAMED_SHOWN:
        yield f"  … and {_many(len(order) - NAMED_SHOWN, 'more rank')}"
    yield from _shared_nodes(named)


def _shared_nodes(named: Iterable[tuple[int, str]]) -> Iterator[str]:
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, node in named:
        ranks[node].append(rank)
    for node, those in sorted(ranks.items(), key=lambda item: -len(item[1])):
        if len(those) > 1:
            yield f"  node {node}: {len(those)} of its ranks were named ({_ranks(those)})"


def _reports(told: Sequence[KeptReport], of: int) -> Iterator[str]:
    title = "Reports" if len(told) == of else f"The last {len(told)} reports"
    yield f"{title:<22}cycle   ranks   lowest   median   named"
    for report in told:
        known = sorted(score for score in report.overall.values() if score is not None)
        lowest, median = (known[0], known[len(known) // 2]) if known else (None, None)
        who = _ranks(verdict.rank for verdict in report.verdicts)
        if len(who) > LONGEST_WHO:
            who = who[: LONGEST_WHO - 1] + "…"
        yield (
            f"{report.number:>5}  {_short_moment(report.t):<15}{report.cycle:>5}{len(report.overall):>8,}"
            f"{_score(lowest):>9}{_score(median):>9}   {who or '-'}"
        )


def _ranks(ranks: Iterable[int]) -> str:
    """3, 4, 5, 9 as "rank 3–5, 9"."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in runs]
    return f"rank {', '.join(texts)}" if texts else ""


def _folded(line: str, width: int | None, further: str = "  ") -> str:
    if width is None or len(line) <= width:
        return line
    return "\n".join(
        textwrap.wrap(
            line, width, subsequent_indent=further, drop_whitespace=True, break_on_hyphens=False
        )
    )  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _moment(t: float) -> str:
    return datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M:%S")


def _short_moment(t: float) -> str:
    return datetime.fromtimestamp(t).strftime("%m-%d %H:%M:%S")


def _clock(t: float) -> str:
    return datetime.fromtimestamp(t).strftime("%H:%M:%S")
