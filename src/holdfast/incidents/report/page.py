"""The page of an incident: one HTML file with all that a person needs, and nothing from elsewhere.

page.html.j2 draws it; here are its values. What always holds is in :mod:`holdfast.html_page`. All ranks have a square;
16,384 of them are about a quarter of a megabyte.
Does not cover: the raw evidence, thread by thread (incident.json). Clocks: each lane of the timeline counts back from
the snapshot of its own node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from holdfast.html_page import render

from ..evidence import AT_EXIT, BoardFacts, Case, Frame, RankEvidence
from ..rules.places import is_own
from ..rules.sentence import seconds
from ..verdict import Judgement, Kind
from .next_steps import next_step
from .text import (
    IncidentView,
    collective_lines,
    end_lines,
    main_thread,
    missing_data,
    node_facts,
    other_threads,
    same_stack,
    stderr_lines,
    where_lines,
)
from .wording import (
    counted,
    evidence_lines,
    grouped,
    rank_ranges,
    state,
    visible,
    visible_lines,
)

GROUPS = 64
"""Lines of a list, groups of stacks and lanes at most."""
NUMBERED = 256
"""Up to this many ranks the squares have their numbers, and a text to point at."""
WINDOW = 60.0
"""Seconds of the timeline."""
LEFT, WIDTH, LANE, TOP, COLOURS = 84, 900, 22, 8, 8

SHADES = MappingProxyType(
    {
        "culprit": "culprit",
        "failed": "failed",
        "stopped": "stopped or blocked in the kernel",
        "waits": "waiting for other ranks",
        "moves": "made progress during the capture",
        "finished": "finished",
        "other": "none of these",
        "nodata": "no data",
    }
)
"""Every colour of a square, with its meaning, in the order of the legend."""
_OF_KIND = MappingProxyType(
    {
        Kind.FAILED: "failed",
        Kind.EXIT: "failed",
        Kind.FINISHED: "finished",
        Kind.STOPPED: "stopped",
        Kind.UNINTERRUPTIBLE: "stopped",
    }
)


def page(case: Case, judgement: Judgement, *, number: int = 0) -> str:
    """The whole page."""
    view = IncidentView(case, judgement)
    lanes, known = _lanes(view)
    shades = dict(_shades(view))
    by_shade = dict(grouped(shades, shades.__getitem__))
    took = max((node.took for node in case.nodes), default=0.0)
    error = view.culprit.raised if view.culprit else None
    values = {
        "title": (f"incident {number:04d}: " if number else "") + view.title,
        "view": view,
        "kind_text": view.verdict.kind.text,
        "next_step": next_step(view),
        "where": list(where_lines(view, 6)),
        "facts": " · ".join([*view.facts(number), f"captured in {seconds(took)}"]),
        "evidence": [*evidence_lines(view.culprit), *view.waits()] if view.culprit else [],
        "grid": _grid(view, shades, by_shade) if shades else None,
        "legend": [
            (shade, len(by_shade[shade]), meaning, rank_ranges(by_shade[shade], 12))
            for shade, meaning in SHADES.items()
            if shade in by_shade
        ],
        "timeline": _timeline(lanes, view.verdict.rank) if lanes else None,
        "lanes_known": known,
        "stacks": list(_stacks(view)),
        "traceback": visible_lines(error.traceback)[-200:] if error else [],
        "stderr": [visible(line) for line in stderr_lines(view.culprit)] if view.culprit else [],
        "lists": {
            "Ends of ranks": list(end_lines(view, (each for each in case.ranks if each.raised or each.exit))),
            "Which ranks wait for which": [view.edge_line(edge) for edge in view.edges if edge.waiters],
            "Last collective of each rank": list(collective_lines(view)),
            "Facts of the nodes": list(_nodes(view)),
            "Missing data": list(missing_data(view)),
        },
        "most": GROUPS,
    }
    return render(Path(__file__).with_name("page.html.j2"), values)


# -- all ranks as squares --------------------------------------------------------------------------------------


def _shades(view: IncidentView) -> Iterator[tuple[int, str]]:
    """Of every rank of the job, by number; also of those without evidence."""
    size = min(max((node.world_size for node in view.case.nodes), default=0), 1 << 20)
    numbers = {*range(size), *view.ranks, *([view.verdict.rank] if view.verdict.rank is not None else [])}
    for rank in sorted(numbers):
        activity = view.activities.get(rank)
        if rank == view.verdict.rank:
            yield rank, "culprit"
        elif activity is None:
            yield rank, "nodata"
        elif activity.waits_for_peers:
            yield rank, "waits"
        else:
            yield rank, _OF_KIND.get(activity.kind, "moves" if activity.moves else "other")


def _grid(view: IncidentView, shades: dict[int, str], by_shade: dict[str, list[int]]) -> dict[str, Any]:
    """Squares in rows of a multiple of 8, the usual number of ranks of a node."""
    count = len(shades)
    sizes_ = ((8, count, 40), (64, 8, 40), (NUMBERED, 16, 40), (1024, 32, 22), (4096, 64, 12))
    columns, cell = next(((columns, cell) for upto, columns, cell in sizes_ if count <= upto), (128, 7))
    gap, left = 1 if cell < 12 else 3, 0 if count <= NUMBERED else 46
    size, rows = cell - gap, -(-count // columns)
    at = {rank: (left + index % columns * cell, index // columns * cell) for index, rank in enumerate(shades)}
    every = max(1, -(-14 // cell)) * (2 if cell < 10 else 1)
    numbers = list(shades)
    # A frame around the culprit that is seen among thousands, and without colours.
    reach, mark = (2, "hollow") if cell > 12 else (6, "s-culprit")
    return {
        "count": count,
        "width": left + columns * cell + 4,
        "height": rows * cell + 4,
        "size": size,
        "paths": [
            (shade, "".join(f"M{at[rank][0]} {at[rank][1]}h{size}v{size}h{-size}z" for rank in ranks))
            for shade, ranks in by_shade.items()
        ],
        "cells": [
            (rank, shade, *at[rank], _pointed(view, rank, shade))
            for rank, shade in shades.items()
            if not left
        ],
        "rows": [
            (numbers[row * columns], row * cell + max(9, cell // 2 + 3))
            for row in range(0, rows, every)
            if left
        ],
        "marks": [
            (at[rank][0] - reach // 2, at[rank][1] - reach // 2, size + reach)
            for rank in by_shade.get("culprit", ())
        ],
        "mark": mark,
    }


def _pointed(view: IncidentView, number: int, shade: str) -> str:
    """The text of a square: `rank 5: waits for other ranks, node gpu-12, pid 4182, state S (sleeping)`."""
    rank = view.ranks.get(number)
    facts = [f"node {visible(rank.node, 60)}", f"pid {rank.pid}", state(rank)] if rank else []
    return ", ".join(part for part in (f"rank {number}: {SHADES[shade]}", *facts) if part)


# -- the last minute -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """One section: from and to, seconds ago, and how deep it lies in others."""

    name: str
    begun: float
    ended: float
    depth: int
    is_open: bool = False


def bars(board: BoardFacts) -> list[Bar]:
    """The sections of the last minute, from the board's ring. All lie within the window.

    A section whose start the ring no longer has reaches back to the oldest event. A ring of many short sections
    reaches back for less than a minute.
    """
    since = max((event.ago for event in board.events), default=0.0)
    started: dict[str, float] = {}
    found: list[Bar] = []
    for event in board.events:
        if event.kind == "start":
            started.setdefault(event.name, event.ago)
        elif event.kind == "end":
            begun = started.pop(event.name, since)
            found.append(Bar(event.name, begun, event.ago, len(started)))
    found += [Bar(each.name, each.seconds, 0.0, depth, True) for depth, each in enumerate(board.sections)]
    return [
        Bar(bar.name, _within(max(bar.begun, bar.ended)), _within(bar.ended), min(bar.depth, 3), bar.is_open)
        for bar in found
    ]


def _within(ago: float) -> float:
    return min(max(ago, 0.0), WINDOW)


def _lanes(view: IncidentView) -> tuple[list[RankEvidence], int]:
    """The ranks that are shown, the culprit first, then its neighbours; and how many have a ring."""
    known = [rank for rank in view.case.ranks if rank.board and (rank.board.events or rank.board.sections)]
    centre = view.verdict.rank if view.verdict.rank is not None else 0
    nearest = sorted(known, key=lambda rank: (abs(rank.rank - centre), rank.rank))[:GROUPS]
    return sorted(nearest, key=lambda rank: (rank.rank != view.verdict.rank, rank.rank)), len(known)


def _timeline(ranks: Sequence[RankEvidence], culprit: int | None) -> dict[str, Any]:
    of_rank = {rank.rank: bars(rank.board) for rank in ranks if rank.board}
    lengths: dict[str, float] = {}
    for bar in (bar for found in of_rank.values() for bar in found):
        lengths[bar.name] = lengths.get(bar.name, 0.0) + bar.begun - bar.ended
    # Those with the longest bars differ most.
    order = sorted(lengths, key=lambda name: (-lengths[name], name))
    colours = {name: min(index, COLOURS - 1) for index, name in enumerate(order)}
    bottom = TOP + len(ranks) * LANE
    kinds = {event.kind for rank in ranks if rank.board for event in rank.board.events}
    return {
        "width": LEFT + WIDTH + 12,
        "bottom": bottom,
        "window": f"{WINDOW:.0f}",
        "ticks": [(_x(ago), "0 s" if ago == 0 else f"−{ago} s") for ago in range(0, int(WINDOW) + 1, 10)],
        "lanes": [
            _lane(rank, of_rank[rank.rank], TOP + index * LANE, colours, rank.rank == culprit)
            for index, rank in enumerate(ranks)
        ],
        "sections": [(visible(name, 60), colour) for name, colour in list(colours.items())[:16]],
        "kinds": kinds,
        "left": LEFT,
        "top": TOP,
    }


def _x(ago: float) -> str:
    return f"{round(LEFT + (1 - _within(ago) / WINDOW) * WIDTH, 1):g}"


def _lane(
    rank: RankEvidence, found: Sequence[Bar], y: int, colours: dict[str, int], is_culprit: bool
) -> dict[str, Any]:
    assert rank.board is not None
    events = rank.board.events
    since = max((event.ago for event in events), default=0.0)

    def at(*kinds: str) -> list[str]:
        return [_x(event.ago) for event in events if event.kind in kinds and event.ago <= WINDOW]

    return {
        "rank": rank.rank,
        "y": y,
        "is_culprit": is_culprit,
        "unknown_to": _x(since) if since < WINDOW else "",
        "bars": [
            (colours[name], *_shape(rank.rank, name, same, y))
            for name, same in grouped(found, lambda bar: bar.name)
        ],
        "steps": "".join(f"M{x} {y + 16}v5" for x in at("step")),
        "beats": "".join(f"M{x} {y + 16}v3" for x in at("heartbeat", "mark", "connect", "finish")),
        "saved": "".join(f"M{x} {y + 3}l5 6l-5 6l-5 -6z" for x in at("checkpoint")),
    }


def _shape(rank: int, name: str, found: Sequence[Bar], y: int) -> tuple[str, str]:
    """All bars of one section in a lane, and the text for a reader who points at one."""
    shape = "".join(
        f"M{_x(bar.begun)} {y + 2 + 3 * bar.depth}"
        f"H{max(float(_x(bar.ended)), float(_x(bar.begun)) + 0.4):g}v{14 - 3 * bar.depth}H{_x(bar.begun)}z"
        for bar in found
    )
    longest = max(bar.begun - bar.ended for bar in found)
    still = ", still open" if any(bar.is_open for bar in found) else ""
    return shape, f"rank {rank}: {visible(name, 60)}, {len(found)} times, longest {seconds(longest)}{still}"


# -- lists and lists ------------------------------------------------------------------------------------------


def _stacks(view: IncidentView) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """The culprit's threads, then each group of ranks with the same calls: a title and its lines."""
    if view.culprit and (main := main_thread(view.culprit)):
        for thread in (main, *other_threads(view.culprit)):
            name = "main thread" if thread is main else f"thread {visible(thread.name, 60)}"
            gil = ", holds the interpreter lock (GIL)" if thread.holds_gil else ""
            yield f"rank {view.culprit.rank}, {name}{gil}", _frames(thread.frames)
    for frames, ranks in grouped(view.others, same_stack):
        activity = view.activities.get(ranks[0].rank)
        text = f": {visible(activity.text, 130)}" if activity else ""
        yield f"{counted([rank.rank for rank in ranks], 12)}{text}", _frames(frames)


def _frames(frames: Sequence[Frame]) -> list[tuple[str, bool]]:
    found = []
    for frame in frames:
        line = f":{frame.line}" if frame.line else ""
        found.append((f"{visible(frame.function, 100)}  {visible(frame.file, 150)}{line}", is_own(frame)))
    return found


def _nodes(view: IncidentView) -> Iterator[str]:
    yield from node_facts(view)
    for rank in view.others:
        yield from (f"rank {rank.rank}: {visible(note)}" for note in rank.notes)
    for node in view.case.nodes:
        if node.reason:
            stopped = "" if node.trigger == AT_EXIT else " stopped its ranks"
            yield f"node {visible(node.node, 60)}{stopped}: {visible(node.reason)}"
