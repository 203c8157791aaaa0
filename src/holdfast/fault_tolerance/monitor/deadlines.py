"""When is a rank hung? Pure functions from a board's snapshot to the moments at which a limit is passed.

Source: the documented heartbeat and section limits (docs: sections and heartbeats). Every open section counts,
an outer one even while inner ones open and close. Before a rank has connected, a limit binds only if the user set
it: a script that knows nothing of Holdfast is never killed for its silence. Its counted steps are heartbeats then.
Does not cover: a rank that keeps sending heartbeats without doing any work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..board import Snapshot
from .gaps import SECOND, Gaps

SUSPICION = 0.8  # share of a limit after which the journal notes that a rank is late
LONGEST = (
    1e9  # seconds; a longer limit is cut to these thirty years, because 1e300 s are no number of nanoseconds
)


@dataclass(frozen=True, slots=True)
class Deadline:
    """One limit in force on one rank: it is passed when the clock reads `at_ns` (monotonic nanoseconds)."""

    at_ns: int
    since_ns: int
    limit: float
    # initial_heartbeat | heartbeat | section | out_of_section; early: no limit is passed, but there is a sign
    reason: str
    section: str = ""
    said: str = ""  # the sentence on it, where it is no documented one

    def waited(self, now_ns: int) -> float:
        """Seconds since the interval began."""
        return (now_ns - self.since_ns) / SECOND

    def text(self, now_ns: int) -> str:
        """The documented sentence for this hang (NeMo's resiliency page has the two on heartbeats)."""
        if self.said:
            return self.said
        waited = f"Waited {self.waited(now_ns):.2f} seconds."
        if self.reason == "initial_heartbeat":
            return f"Did not get initial heartbeat. {waited}"
        if self.reason == "heartbeat":
            return f"Did not get subsequent heartbeat. {waited}"
        if self.reason == "section":
            return f"Section '{self.section}' did not end. {waited}"
        return f"No section was opened. {waited}"


def deadlines(board: Snapshot, gaps: Gaps) -> Iterator[Deadline]:
    """Every limit in force on this rank now."""
    if board.identity is None or board.finished:
        return
    for since, limit, reason, section in _intervals(board):
        if limit is not None:
            yield Deadline(gaps.deadline(since, nanoseconds(limit)), since, limit, reason, section)


def _intervals(board: Snapshot) -> Iterator[tuple[int, float | None, str, str]]:
    """Every interval that runs: since when, its limit, what it is."""
    limits = board.limits
    if board.last_heartbeat_ns > board.connected_ns:
        binds = board.connected or limits.subsequent_set_by_user
        yield board.last_heartbeat_ns, limits.subsequent if binds else None, "heartbeat", ""
    elif not _used_sections(board):
        since = _initial_since(board)
        if since is not None:
            yield since, limits.initial, "initial_heartbeat", ""
    for section in board.open_sections:
        yield section.since_ns, limits.sections.get(section.name), "section", section.name
    if board.out_of_section_since_ns:
        yield board.out_of_section_since_ns, limits.out_of_section, "out_of_section", ""


def _used_sections(board: Snapshot) -> bool:
    """Whether a section was opened since the rank connected (a second connecting begins to count anew)."""
    return board.section_count > 0 and board.out_of_section_since_ns != board.connected_ns


def _initial_since(board: Snapshot) -> int | None:
    """Where the wait for a first sign of life began, None while nobody waits for one.

    A limit that the user set runs from the rank's start. Any other begins to bind when the rank connects, so what it
    spent before does not count: nobody is killed for connecting late. The same holds for connecting a second time.
    """
    limits, started = board.limits, board.identity.started_ns if board.identity else 0
    if limits.initial_set_by_user and not board.heartbeat_count and not board.section_count:
        allowed = nanoseconds(limits.initial or LONGEST)
        return started if board.connected_ns <= started + allowed else board.connected_ns
    return board.connected_ns if board.connected else None


def nanoseconds(limit: float) -> int:
    """A limit in seconds as a whole number of nanoseconds."""
    return int(min(limit, LONGEST) * SECOND)


def earliest(found: Iterable[Deadline]) -> Deadline | None:
    """The limit that is passed first."""
    return min(found, key=lambda deadline: deadline.at_ns, default=None)


def shortest_limit(board: Snapshot) -> float:
    """Seconds in which a limit that does *not yet* run could be passed; infinite when there is none."""
    limits = board.limits
    every = [limits.initial, limits.subsequent, limits.out_of_section, *limits.sections.values()]
    return min((limit for limit in every if limit is not None), default=float("inf"))


def next_look(board: Snapshot, gaps: Gaps, now_ns: int) -> int:
    """The moment until which nobody needs to look at this rank again: whatever it does meanwhile, no limit that is on
    its board now is passed before. (Limits that it puts in force meanwhile are seen at the next look.)"""
    could_begin_now = now_ns + nanoseconds(shortest_limit(board))
    passed_first = earliest(deadlines(board, gaps))
    return min(could_begin_now, passed_first.at_ns) if passed_first else could_begin_now
