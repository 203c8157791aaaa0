"""One frame of `holdfast top`: from what was read of a job to lines of styled text. Pure.

Ranks that are closest to a timeout come first where not all have room. Every text is one line that no terminal acts
on; lines may be wider than the terminal, which cuts them.
Does not cover: times when the node was suspended, and the longer timeouts of a rank's first steps: until the monitor
acts, a rank may be shown as late that is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap

from ..autoresume.policy import duration
from ..fault_tolerance.board.values import SECOND, BoardEvent, Snapshot
from ..fault_tolerance.monitor.deadlines import SUSPICION, Suspensions, deadlines
from ..incidents.report.wording import clock, visible
from ..journal.event import Event
from ..journal.goodput import NOTHING, JobNow
from ..journal.incidents import Incident

LATEST = 60 * SECOND
"""Steps of this time count for a rank's step rate."""
LONG, TIMES = 10.0, 5.0
"""Seconds without a step that are long where they are as many times a rank's longest step."""
RUNNING = ("starting", "training", "late")
"""States of ranks that may have a step."""
NARROW = 64
"""Columns; below, the step rate is left out."""
INCIDENTS = 5
"""How many of the last are shown."""
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
    idle: float = 0.0
    """Seconds without a step, where they are long; else 0."""
    sections: tuple[tuple[str, float], ...] = ()
    """Open ones with their seconds, the outer first."""
    passed: float = 0.0
    """Share of its nearest timeout."""
    timeout: str = ""
    """What that is of, and when."""


@dataclass(frozen=True, slots=True)
class View:
    """All that a frame shows: of this node's boards, and of the journal as far as it has been read."""

    title: str
    at: float
    """Unix seconds."""
    node: str = ""
    """That of the ranks."""
    ranks: Sequence[RankState] = ()
    journal: JobNow = NOTHING
    notes: Sequence[str] = ()


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
    rate, idle = _rate(events, now), _idle(events, now)
    return RankState(rank, state, board.step, rate, idle, sections, passed, timeout)


def _rate(events: Sequence[BoardEvent], now: int) -> float | None:
    """Steps per second of the last minute; None before two steps, and where the program counts anew."""
    steps = [each for each in events if each.kind == "step" and now - each.at_ns <= LATEST]
    if len(steps) < 2 or steps[-1].at_ns <= steps[0].at_ns or steps[-1].value < steps[0].value:
        return None
    return (steps[-1].value - steps[0].value) * SECOND / (steps[-1].at_ns - steps[0].at_ns)


def _idle(events: Sequence[BoardEvent], now: int) -> float:
    """Seconds since the last step, where they are long; else 0."""
    steps = [each.at_ns for each in events if each.kind == "step"]
    longest = max((after - before for before, after in pairwise(steps)), default=now)
    idle = (now - steps[-1]) / SECOND if steps else 0.0
    return idle if idle > max(LONG, TIMES * longest / SECOND) else 0.0


def frame(view: View, width: int, height: int = 1 << 30) -> list[Line]:
    """The lines of a frame; at most `height`."""
    head: list[Line] = [((visible(view.title, 500), "bold"), (f"  {clock(view.at)}", "dim"))]
    if ledger := view.journal.ledger:
        share = f"goodput {ledger.share:.1%} of {duration(ledger.wall)}"
        counts = f", cycles: {ledger.cycles}, failures: {ledger.failures}"
        head.append(((share + counts, ""), (f"  {visible(view.journal.end, 200)}", "bold")))
    running = [each for each in view.ranks if each.state in RUNNING]
    if idle := min((each.idle for each in running), default=0.0):
        since = clock(view.at - idle)
        head.append(((f"no rank has finished a step since {since} ({duration(idle)})", STYLES["late"]),))
    end = [_incident(each) for each in view.journal.incidents[-INCIDENTS:]]
    end += [((line, "dim"),) for note in view.notes for line in wrap(visible(note, 500), max(width, 10))[:4]]
    ranks = [_rank(each, width) for each in view.ranks]
    nodes = [
        _node(each, view, width) for each in view.journal.progress if not ranks or each.source != view.node
    ]
    room = max(height - len(head) - len(end), 4)
    for_nodes = min(len(nodes) + 1, max(room // 2, room - len(ranks) - 1)) if nodes else 0
    title = _cells(width, "rank", "step", "steps/s", f"{'state':<9}timeout and open sections")
    lines = [*head, *_fitting(title, ranks, room - for_nodes, "ranks")]
    title = _cells(width, "ranks", "step", "steps/s", "node")
    return [*lines, *_fitting(title, nodes, for_nodes, "nodes"), *end][:height]


Row = tuple[float, str, Line]
"""How much it matters, what it counts as where it has no room, and its line."""


def _fitting(title: str, rows: Sequence[Row], most: int, what: str) -> Iterator[Line]:
    """The rows, with their title; where they are more than `most` lines, those that matter, and a count of the rest."""
    if not rows or most < 2:
        return
    yield ((title, "dim"),)
    order = sorted(range(len(rows)), key=lambda number: -rows[number][0])
    chosen = set(order if len(rows) < most else order[: max(most - 2, 0)])
    yield from (line for number, (_, _, line) in enumerate(rows) if number in chosen)
    if rest := Counter(rows[number][1] for number in order if number not in chosen):
        counts = ", ".join(f"{count} {kind}" for kind, count in rest.items())
        yield ((f"and {len(rows) - len(chosen)} more {what}: {counts}", "dim"),)


def _cells(width: int, number: object, step: object, rate: object, rest: str) -> str:
    """The columns that ranks and nodes share; what is no number of the journal, or unknown, is `-`."""
    rate = f"{rate:.3g}" if isinstance(rate, float) else rate or "-"
    cells = f"{number!s:>5} {'-' if step is None else step!s:>9} "
    return cells + (f"{rate!s:>8}  " if width >= NARROW else " ") + rest


def _rank(each: RankState, width: int) -> Row:
    style = STYLES.get(each.state, "")
    filled = "#" * round(10 * min(max(each.passed, 0.0), 1.0))
    bar = f"[{filled:<10}] {each.timeout}  " if each.timeout else ""
    inside = " > ".join(f"{name} {seconds:.1f} s" for name, seconds in each.sections)
    line = (
        (_cells(width, each.rank, each.step, each.rate, ""), ""),
        (f"{each.state:<9}", style),
        (visible(bar + inside, 300), style if each.state == "late" else ""),
    )
    return (9.0 if each.state in ("failed", "ended") else each.passed), each.state, line


def _node(event: Event, view: View, width: int) -> Row:
    age = max(0.0, view.at - event.t)
    text = f"{event.source}, reported {duration(age)} ago"
    cells = _cells(width, event.get("ranks"), event.get("steps_most"), event.get("step_rate"), text)
    return age, "reported later", ((visible(cells, 300), ""),)


def _incident(each: Incident) -> Line:
    who = f"node {each.node}" if each.rank is None else f"rank {each.rank} ({each.node})"
    text = f"{clock(each.t, '%m-%d %H:%M:%S')}  {each.kind}, {who}: {each.what}; {each.outcome}"
    return (f"incident {each.number}  ", "bold red"), (visible(text, 500), "")
