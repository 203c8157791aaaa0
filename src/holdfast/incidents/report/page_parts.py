"""The page's lists and tables: stacks, ends, collective operations, nodes. Pure.

What always holds: whatever came from ranks, users and hosts is escaped; what scrolls can be reached by keyboard.

Does not cover: pictures; those are `grid` and `timeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..evidence import Case, Frame, RankEvidence, Thread
from ..verdict import Verdict
from .frames import is_own
from .grouping import counted, grouped, main_thread, same_stack
from .heading import culprit_of
from .sections import alike, last_of_each_group
from .wording import beside_the_look, end_moment, ended, raised, seconds, visible, visible_lines
from .wording import where as place_of

GROUPS = 64
"""Groups of stacks, ends or operations that are shown at most."""


def section(title: str, inside: str) -> str:
    """A part of the page with its title."""
    return f"<section><h2>{escape(title)}</h2>{inside}</section>"


def box(inside: str, name: str) -> str:
    """What may be wider than the page: it scrolls by itself, by keyboard too."""
    return f'<div class="box" tabindex="0" role="region" aria-label="{escape(name)}">{inside}</div>'


def pre(inside: str, name: str) -> str:
    """Lines as they are, already escaped."""
    return f'<pre tabindex="0" role="region" aria-label="{escape(name)}">{inside}</pre>'


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """A table; what is in its cells is escaped here."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return box(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", name)


def stacks(case: Case, verdict: Verdict) -> str:
    """The culprit's threads, then each group of ranks with the same calls."""
    culprit = culprit_of(case, verdict)
    found = _threads(culprit) if culprit else ""
    groups = grouped((rank for rank in case.ranks if rank.rank != verdict.rank), same_stack)
    for index, (frames, ranks) in enumerate(groups[:GROUPS]):
        thread = main_thread(ranks[0])
        calls = thread.frames if thread else frames
        title = f"{counted([rank.rank for rank in ranks], 12)}: {place_of(ranks[0])}"
        found += _details(title, calls, is_open=not found and index == 0)
    found += _more(len(groups) - GROUPS, "groups of stacks")
    if not found:
        return ""
    note = '<p class="dim">The innermost call first. Marked lines are your own code.</p>'
    return section("Where the ranks are in their code", note + found)


def _threads(culprit: RankEvidence) -> str:
    main = main_thread(culprit)
    others = [thread for thread in culprit.stacks if thread is not main and thread.frames]
    texts = [
        _details(
            f"rank {culprit.rank}, {_name(thread, thread is main)}", thread.frames, is_open=thread is main
        )
        for thread in ([main] if main else []) + others[:GROUPS]
    ]
    return "".join(texts) + _more(len(others) - GROUPS, "threads")


def _name(thread: Thread, is_main: bool) -> str:
    name = "main thread" if is_main else f"thread {visible(thread.name, 60)}"
    return f"{name}, holds the interpreter lock (GIL)" if thread.holds_gil else name


def _details(title: str, frames: Sequence[Frame], *, is_open: bool) -> str:
    lines = []
    for frame in frames:
        text = f"{visible(frame.function, 100)}  {visible(frame.file, 150)}" + (
            f":{frame.line}" if frame.line else ""
        )
        lines.append(f'<span class="own">{escape(text)}</span>' if is_own(frame) else escape(text))
    what = pre("\n".join(lines), f"stack of {title}")
    return f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{what}</details>"


def ends(case: Case, verdict: Verdict) -> str:
    """Exceptions, exits, and what the culprit and those who failed wrote last."""
    failed = [rank for rank in case.ranks if rank.raised or rank.exit]
    culprit = culprit_of(case, verdict)
    groups = grouped(failed, _end)
    rows = []
    for what, ranks in groups[:GROUPS]:
        first = max(map(end_moment, ranks))
        numbers = [rank.rank for rank in ranks]
        followed = "named as the culprit" if verdict.rank in numbers else ""
        followed = followed or ("followed" if set(numbers) & set(verdict.followers) else "")
        rows.append((counted(numbers), what, beside_the_look(first), followed))
    found = table(("who", "how", "when", ""), rows, "How ranks ended") if rows else ""
    found += _more(len(groups) - GROUPS, "kinds of end")
    if culprit and culprit.raised and culprit.raised.traceback:
        lines = "\n".join(visible_lines(culprit.raised.traceback)[-200:])
        found += f"<h3>Traceback of rank {culprit.rank}</h3>{pre(escape(lines), 'traceback')}"
    if culprit and culprit.last_lines:
        lines = "\n".join(visible(line) for line in culprit.last_lines)
        found += f"<h3>The last that rank {culprit.rank} wrote to stderr</h3>{pre(escape(lines), 'stderr')}"
    return section("Ends and last words", found) if found else ""


def _end(rank: RankEvidence) -> str:
    end = ended(rank.exit) + (" (it had been told to)" if rank.exit.asked else "") if rank.exit else ""
    if not rank.raised:
        return end
    return raised(rank.raised) + (f" ({end})" if end else "")


def collectives(case: Case) -> str:
    """The last operation of each rank in each process group; ranks that agree are one row."""
    entries = [(rank.rank, entry) for rank in case.ranks for entry in last_of_each_group(rank.collectives)]
    groups = grouped(entries, lambda pair: alike(pair[1]))
    rows = []
    for _, told in groups[:GROUPS]:
        entry = max((entry for _, entry in told), key=lambda entry: entry.ago)
        rows.append(
            (
                counted([rank for rank, _ in told], 12),
                str(entry.sequence),
                visible(entry.operation, 60),
                visible(entry.group, 40),
                visible(f"{entry.sizes} {entry.dtype}".strip(), 80),
                "completed" if entry.state == "completed" else f"not completed ({visible(entry.state, 30)})",
                seconds(entry.ago),
            )
        )
    if not rows:
        return ""
    titles = ("who", "number", "operation", "group", "sizes", "state", "begun … ago")
    note = (
        '<p class="dim">Operations that all ranks of a group do together (all_reduce and its like). Ranks of one group '
        "must show the same number, operation and sizes.</p>"
    )
    return section(
        "Last collective operations",
        note + table(titles, rows, "Last collective operations") + _more(len(groups) - GROUPS, "rows"),
    )


def nodes(case: Case) -> str:
    """Facts of the nodes, and of ranks beside the culprit that have notes."""
    notes = [f"node {visible(node.node, 60)}: {visible(note)}" for node in case.nodes for note in node.notes]
    notes += [f"rank {rank.rank}: {visible(note)}" for rank in case.ranks for note in rank.notes]
    reasons = [
        f"node {visible(node.node, 60)} stopped its ranks: {visible(node.reason)}"
        for node in case.nodes
        if node.reason
    ]
    found = [*notes, *dict.fromkeys(reasons)]
    items = "".join(f"<li>{escape(line)}</li>" for line in found[:GROUPS])
    return section("Facts", f"<ul>{items}</ul>" + _more(len(found) - GROUPS, "facts")) if found else ""


def _more(many: int, what: str) -> str:
    return f'<p class="dim">{many} more {what} are in incident.json.</p>' if many > 0 else ""
