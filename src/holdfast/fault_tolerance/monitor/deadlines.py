"""When a rank is hung: pure functions from a board's snapshot to the moments at which a limit is passed.

Also the milestones of a rank, each of which is reported once.

Source: docs/sections-and-heartbeats.md. Before a rank has connected, a limit binds only if the user set it: a script
that does not use Holdfast is never killed for its silence. Its counted steps are heartbeats then.

Every interval is extended by the times when this whole node was suspended (SIGSTOP of the job, cgroup freezer, VM
pause, a monitor that was stopped or replaced). From inside they look the same: no monitor has read the boards for
longer than was planned. So every interval that runs gets the whole stretch back, from the last scan on: a rank that was
within its limit then is within it now.

When the rank's main thread has ended, only what began later still counts, and a `checkpointing` section that is open:
the launcher handles a process that stays. After an exception that section has a limit in any case.

Times are monotonic nanoseconds.
Does not cover: a rank that keeps sending heartbeats without doing any work; a suspension shorter than about two
seconds, the planned sleep plus `OVERSLEPT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..board import BoardEvent, Snapshot
from ..board.values import CHECKPOINTING
from ..board.values import SECOND as SECOND

STEP = "step"  # the documented section of one training step
OVERSLEPT = 1 * SECOND  # a scan that comes this much later than planned means that the node was suspended
SAVING = 30.0  # seconds for a checkpoint after an exception, where its section has no limit
WAKEUP_GRACE = 1 * SECOND  # an interval caught in a suspension lasts at least this long after it
KEPT = 100  # suspensions that are remembered
SUSPICION = 0.8  # share of a limit after which the journal notes that a rank is late
LONGEST = 1e9  # seconds (thirty years); a longer limit is cut to it: 1e300 s are no number of nanoseconds


def was_suspended(planned_ns: int, now_ns: int) -> bool:
    """Whether a scan planned for `planned_ns` (0: none was) comes so late that the node was suspended."""
    return planned_ns > 0 and now_ns - planned_ns > OVERSLEPT


@dataclass(frozen=True, slots=True)
class Suspensions:
    """The suspensions so far, as (start, end), the oldest first."""

    spans: tuple[tuple[int, int], ...] = ()

    def plus(self, start_ns: int, end_ns: int) -> Suspensions:
        """These and one more; only the last `KEPT` are remembered."""
        return Suspensions((*self.spans, (start_ns, end_ns))[-KEPT:])

    def since(self, start_ns: int) -> int:
        """For how long the node was suspended after `start_ns`."""
        return sum(end - max(start, start_ns) for start, end in self._caught(start_ns))

    def deadline(self, since_ns: int, length_ns: int) -> int:
        """When an interval that began at `since_ns` has lasted `length_ns` without the suspensions in it."""
        at = since_ns + length_ns + self.since(since_ns)
        return max((at, *(end + WAKEUP_GRACE for _, end in self._caught(since_ns))))

    def _caught(self, start_ns: int) -> Iterable[tuple[int, int]]:
        return ((start, end) for start, end in self.spans if end > start_ns)


@dataclass(frozen=True, slots=True)
class Deadline:
    """One limit in force on one rank: it is passed when the clock reads `at_ns` (monotonic nanoseconds)."""

    at_ns: int
    since_ns: int
    limit: float
    # initial_heartbeat | heartbeat | section | out_of_section; early: no limit is passed, but there is a sign
    reason: str
    section: str = ""
    sentence: str = ""  # where it is no documented one

    def waited(self, now_ns: int) -> float:
        """Seconds since the interval began."""
        return (now_ns - self.since_ns) / SECOND

    def text(self, now_ns: int) -> str:
        """The documented sentence for this hang (NeMo's resiliency page has the two on heartbeats)."""
        if self.sentence:
            return self.sentence
        waited = f"Waited {self.waited(now_ns):.2f} seconds."
        if self.reason == "initial_heartbeat":
            return f"Did not get initial heartbeat. {waited}"
        if self.reason == "heartbeat":
            return f"Did not get subsequent heartbeat. {waited}"
        if self.reason == "section":
            return f"Section '{self.section}' did not end. {waited}"
        return f"No section was opened. {waited}"


def deadlines(board: Snapshot, suspensions: Suspensions, warm_up: int = 0) -> Iterator[Deadline]:
    """Every limit in force on this rank now; its first `warm_up` steps may take longer than the others."""
    if board.identity is None or board.finished:
        return
    for since, own, reason, section in _intervals(board):
        limit = _for_first_steps(board, own, reason, section, warm_up)
        if board.main_ended_ns:
            since, limit = _after_main_end(board, since, limit, reason, section)
        if limit is not None:
            yield Deadline(suspensions.deadline(since, nanoseconds(limit)), since, limit, reason, section)


def _intervals(board: Snapshot) -> Iterator[tuple[int, float | None, str, str]]:
    """Every interval that runs: since when, its limit, what it is."""
    limits = board.limits
    if board.last_heartbeat_ns > board.connected_ns:
        binds = board.connected or limits.subsequent_set_by_user
        yield board.last_heartbeat_ns, limits.subsequent if binds else None, "heartbeat", ""
    elif not board.section_count or board.out_of_section_since_ns == board.connected_ns:
        # It has opened no section since it connected, perhaps a second time.
        since = _initial_since(board)
        if since is not None:
            yield since, limits.initial, "initial_heartbeat", ""
    for section in board.open_sections:
        yield section.since_ns, limits.sections.get(section.name), "section", section.name
    if board.out_of_section_since_ns:
        yield board.out_of_section_since_ns, limits.out_of_section, "out_of_section", ""


def _for_first_steps(
    board: Snapshot, limit: float | None, reason: str, section: str, warm_up: int
) -> float | None:
    """The limit, but that of a step or out of section is not less than the initial one before `warm_up` steps ended."""
    steps = board.section_totals.get(STEP)
    is_first = (steps.count if steps else 0) < warm_up
    if limit is None or not is_first or not (section == STEP or reason == "out_of_section"):
        return limit
    return None if board.limits.initial is None else max(limit, board.limits.initial)


def _after_main_end(
    board: Snapshot, since: int, limit: float | None, reason: str, section: str
) -> tuple[int, float | None]:
    """The interval with its limit, if that still counts when the main thread has ended.

    A checkpoint section that an exception has left open, and that has no limit, gets one.
    """
    if section == CHECKPOINTING:
        if limit is None and board.main_raised:
            return max(since, board.main_ended_ns), SAVING
        return since, limit
    return since, None if since < board.main_ended_ns or reason == "out_of_section" else limit


def _initial_since(board: Snapshot) -> int | None:
    """When the wait for a first sign of life began, None where there is no such wait.

    A limit that the user set runs from the rank's start. A default limit starts when the rank connects: no rank is
    killed for connecting late. The same holds for connecting a second time.
    """
    limits, started = board.limits, board.identity.started_ns if board.identity else 0
    if limits.initial_set_by_user and not board.heartbeat_count and not board.section_count:
        allowed = nanoseconds(limits.initial or LONGEST)
        return started if board.connected_ns <= started + allowed else board.connected_ns
    return board.connected_ns if board.connected else None


def nanoseconds(limit: float) -> int:
    return int(min(limit, LONGEST) * SECOND)


def earliest(found: Iterable[Deadline]) -> Deadline | None:
    return min(found, key=lambda deadline: deadline.at_ns, default=None)


def next_scan(board: Snapshot, suspensions: Suspensions, now_ns: int, warm_up: int = 0) -> int:
    """When this rank has to be scanned again: whatever it does meanwhile, no limit that is on its board now is passed
    before. (Limits that it puts in force meanwhile are seen at the next scan.)"""
    limits = board.limits
    every = [limits.initial, limits.subsequent, limits.out_of_section, *limits.sections.values()]
    shortest = min((limit for limit in every if limit is not None), default=LONGEST)
    could_begin_now = now_ns + nanoseconds(shortest)
    passed_first = earliest(deadlines(board, suspensions, warm_up))
    return min(could_begin_now, passed_first.at_ns) if passed_first else could_begin_now


MILESTONES = {
    "rank_connect": ("connect",),
    "first_step": ("step",),
    "first_heartbeat": ("heartbeat", "step"),
    "first_section": ("start",),
}
"""Each with the kinds of events in a board's ring that show it."""


@dataclass(slots=True)
class Milestones:
    """What of one rank was reported already: connected, first heartbeat, step and section, a request, being late.

    Does not cover: events that were overwritten in the ring between two scans; a first heartbeat or step then has the
    time of the oldest one that is still on the ring. (A heartbeat with a step is an event of kind "step".)
    """

    reported: set[str] = field(default_factory=set)
    suspected_since: int = 0
    request: tuple[str, str] | None = None

    def poll(self, board: Snapshot, events: Callable[[], list[BoardEvent]]) -> Iterator[dict[str, Any]]:
        """Each milestone once, with the moment it happened; `events` is asked for the board's ring when needed.

        The step comes before the heartbeat that brought it: it has more detail.
        """
        happened = (
            board.connected,
            board.step is not None,
            board.heartbeat_count > 0,
            board.section_count > 0,
        )
        for (event, kinds), has_happened in zip(MILESTONES.items(), happened, strict=True):
            if has_happened and event not in self.reported:
                self.reported.add(event)
                yield {"event": event, **_first(events(), kinds, board)}
        if board.request and (board.request.action, board.request.description) != self.request:
            self.request = (board.request.action, board.request.description)
            yield {"event": "request", "action": self.request[0], "description": self.request[1]}

    def suspicion(self, deadline: Deadline | None, now_ns: int) -> Iterator[dict[str, Any]]:
        """Once per interval: most of a limit has gone by."""
        if deadline is None or deadline.since_ns == self.suspected_since:
            return
        if now_ns >= suspicion_at(deadline):
            self.suspected_since = deadline.since_ns
            yield {
                "event": "suspicion",
                "reason": deadline.reason,
                "section": deadline.section,
                "waited": round(deadline.waited(now_ns), 3),
                "limit": deadline.limit,
            }


def _first(events: list[BoardEvent], kinds: tuple[str, ...], board: Snapshot) -> dict[str, Any]:
    """When the ring first has one of these kinds, and at which step; the last activity where the ring has none."""
    found = next((event for event in events if event.kind in kinds), None)
    first: dict[str, Any] = {"at": (found.at_ns if found else board.last_activity_ns) / SECOND}
    if kinds == ("step",):
        first["step"] = found.value if found else board.step
        if board.counted:  # from the start of this process: not the training's own number
            first["counted"] = True
    return first


def suspicion_at(deadline: Deadline) -> int:
    """The moment at which a rank is called late in the journal."""
    return deadline.at_ns - nanoseconds((1 - SUSPICION) * deadline.limit)
