"""One frame of `holdfast top`: from what was read of a job to lines of styled text. Pure.

Ranks that are closest to a timeout come first where not all have room. Every text is one line that no terminal acts
on; lines may be wider than the terminal, which cuts them.
Does not cover: times when the node was suspended, and the longer timeouts of a rank's first steps: until the monitor
acts, a rank may be shown as late that is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from ..autoresume.policy import duration
from ..fault_tolerance.board.values import SECOND, BoardEvent, Snapshot
from ..fault_tolerance.monitor.deadlines import SUSPICION, Suspensions, deadlines
from ..incidents.report.wording import clock, visible
from ..journal.incidents import Incident

LATEST = 60 * SECOND
"""Steps of this time count for a rank's step rate."""
NARROW = 64
"""Columns; below, the step rate is left out."""
STYLES = {"training": "green", "late": "bold yellow", "failed": "bold red", "ended": "red"}
"""Of a rank's state, for rich."""

Line = tuple[tuple[str, str], ...]
"""Texts with their styles."""


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of this node."""

    rank: int
    state: str
    """starting, training, late, failed (its main thread raised), finished, ended (no process) or unknown (no board)."""
    step: int | None = None
    rate: float | None = None
    """Steps per second."""
    sections: tuple[tuple[str, float], ...] = ()
    """Open ones with their seconds, the outer first."""
    passed: float = 0.0
    """Share of its nearest timeout."""
    timeout: str = ""
    """What that is of, and when."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node by its last `progress` event."""

    node: str
    ranks: int
    step: int | None
    rate: float | None
    age: float
    """Seconds since the event."""


@dataclass(frozen=True, slots=True)
class JournalFacts:
    """What the journal has."""

    share: float
    wall: float
    cycles: int
    failures: int
    incidents: tuple[Incident, ...]
    """The last ones."""
    nodes: tuple[NodeState, ...]
    end: str
    """How the job ended; empty while it runs."""


@dataclass(frozen=True, slots=True)
class View:
    """All that a frame shows."""

    title: str
    at: float
    """Unix seconds."""
    node: str = ""
    """That of the ranks."""
    ranks: tuple[RankState, ...] = ()
    facts: JournalFacts | None = None
    notes: tuple[str, ...] = ()


def rank_state(
    rank: int, board: Snapshot, events: Sequence[BoardEvent], now: int, is_running: bool
) -> RankState:
    """A rank from its board at `now` (monotonic nanoseconds), and whether its process runs."""
    nearest = max(
        deadlines(board, Suspensions()), key=lambda each: each.waited(now) / each.limit, default=None
    )
    passed = nearest.waited(now) / nearest.limit if nearest else 0.0
    timeout = ""
    if nearest:
        name = nearest.section or nearest.reason.replace("_", " ")
        timeout = f"{name} {max(0.0, nearest.waited(now)):.1f} of {nearest.limit:g} s"
    if board.main_raised:
        state = "failed"
    elif board.finished or board.main_ended_ns:
        state = "finished"
    elif not is_running:
        state = "ended"
    elif passed >= SUSPICION:
        state = "late"
    else:
        state = "training" if board.step is not None or board.section_count else "starting"
    sections = tuple((each.name, max(0.0, (now - each.since_ns) / SECOND)) for each in board.open_sections)
    return RankState(rank, state, board.step, _rate(events, now), sections, passed, timeout)


def _rate(events: Sequence[BoardEvent], now: int) -> float | None:
    """Steps per second of the last minute; None before two steps, and where the program counts anew."""
    steps = [each for each in events if each.kind == "step" and now - each.at_ns <= LATEST]
    if len(steps) < 2 or steps[-1].at_ns <= steps[0].at_ns or steps[-1].value < steps[0].value:
        return None
    return (steps[-1].value - steps[0].value) * SECOND / (steps[-1].at_ns - steps[0].at_ns)


def frame(view: View, width: int, height: int | None = None) -> list[Line]:
    """The lines of a frame; at most `height`, None for as many as there are."""
    notes = [line for note in view.notes for line in wrap(visible(note, 500), max(width, 10))[:4]]
    end = [*_incidents(view), *(((line, "dim"),) for line in notes)]
    others = (
        [each for each in view.facts.nodes if each.node != view.node or not view.ranks] if view.facts else []
    )
    head = list(_head(view))
    room = 10**6 if height is None else max(height - len(head) - len(end), 4)
    most = room if not others else max(room - min(len(others) + 1, room // 2), 2)
    lines = [*head, *_ranks(view.ranks, most, width)]
    room = max(room - (len(lines) - len(head)), 0)
    return [*lines, *_nodes(others, room, width), *end][:height]


def _head(view: View) -> Iterator[Line]:
    yield ((visible(view.title, 500), "bold"), (f"  {clock(view.at)}", "dim"))
    facts = view.facts
    if facts:
        ended = ((f"  {visible(facts.end, 200)}", "bold"),) if facts.end else ()
        counts = f"cycles: {facts.cycles}, failures: {facts.failures}"
        yield ((f"goodput {facts.share:.1%} of {duration(facts.wall)}, {counts}", ""), *ended)


def _ranks(ranks: Sequence[RankState], most: int, width: int) -> Iterator[Line]:
    if not ranks:
        return
    shown = list(ranks)
    if len(ranks) + 1 > most:
        nearest = sorted(ranks, key=lambda each: (each.state not in ("failed", "ended"), -each.passed))
        shown = sorted(nearest[: max(most - 2, 0)], key=lambda each: each.rank)
    yield ((_cells(width, "rank", "step", "steps/s", f"{'state':<9}timeout and open sections"), "dim"),)
    for each in shown:
        rate = "-" if each.rate is None else f"{each.rate:.3g}"
        step = "-" if each.step is None else str(each.step)
        bar = (
            f"[{'#' * round(10 * min(max(each.passed, 0.0), 1.0)):<10}] {each.timeout}  "
            if each.timeout
            else ""
        )
        inside = " > ".join(f"{name} {seconds:.1f} s" for name, seconds in each.sections)
        style = STYLES.get(each.state, "")
        yield (
            (_cells(width, str(each.rank), step, rate, ""), ""),
            (f"{each.state:<9}", style),
            (visible(f"{bar}{inside}", 300), style if each.state == "late" else ""),
        )
    if len(shown) < len(ranks):
        left = {each.state: 0 for each in ranks}
        for each in ranks:
            left[each.state] += each not in shown
        counts = ", ".join(f"{count} {state}" for state, count in left.items() if count)
        yield ((f"and {len(ranks) - len(shown)} more ranks: {counts}", "dim"),)


def _nodes(nodes: Sequence[NodeState], most: int, width: int) -> Iterator[Line]:
    """The nodes whose last event is oldest come first where not all have room."""
    if not nodes or most < 2:
        return
    shown = list(nodes)
    if len(nodes) + 1 > most:
        shown = sorted(sorted(nodes, key=lambda each: -each.age)[: most - 2], key=lambda each: each.node)
    yield ((_cells(width, "ranks", "step", "steps/s", "node"), "dim"),)
    for each in shown:
        rate = "-" if each.rate is None else f"{each.rate:.3g}"
        step = "-" if each.step is None else str(each.step)
        text = f"{visible(each.node, 60)}, reported {duration(max(0.0, each.age))} ago"
        yield ((_cells(width, str(each.ranks), step, rate, text), ""),)
    if len(shown) < len(nodes):
        yield ((f"and {len(nodes) - len(shown)} more nodes", "dim"),)


def _cells(width: int, number: str, step: str, rate: str, rest: str) -> str:
    return f"{number:>5} {step:>9} " + (f"{rate:>8}  " if width >= NARROW else " ") + rest


def _incidents(view: View) -> Iterator[Line]:
    for each in view.facts.incidents if view.facts else ():
        who = f"node {each.node}" if each.rank is None else f"rank {each.rank} ({each.node})"
        text = f"{clock(each.t, '%m-%d %H:%M:%S')}  {each.kind}, {who}: {each.what}; {each.outcome}"
        yield ((f"incident {each.number}  ", "bold red"), (visible(text, 500), ""))
