"""Milestones of a rank: connected, first heartbeat, first step, a request, being late. Each is reported once.

Pure: a :class:`Milestones` remembers for one rank and cycle what was reported already.
Does not cover: events that were overwritten in the ring between two scans; a first heartbeat or step then
has the time of the oldest one that is still on the ring. (A heartbeat with a step is an event of kind "step".)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..board import BoardEvent, Snapshot
from .deadlines import SECOND, SUSPICION, Deadline, nanoseconds

Observation = dict[str, Any]
Events = Callable[[], list[BoardEvent]]


@dataclass(slots=True)
class Milestones:
    """What of one rank was reported already."""

    reported: set[str] = field(default_factory=set)
    suspected_since: int = 0
    request: tuple[str, str] | None = None

    def poll(self, board: Snapshot, events: Events) -> Iterator[Observation]:
        """Each milestone once, with the moment it happened; `events` is asked for the board's ring when needed.

        The step comes before the heartbeat that brought it: it has more detail.
        """
        for event, kinds, happened in (
            ("rank_connect", ("connect",), board.connected),
            ("first_step", ("step",), board.step is not None),
            ("first_heartbeat", ("heartbeat", "step"), board.heartbeat_count > 0),
            ("first_section", ("start",), board.section_count > 0),
        ):
            if happened and event not in self.reported:
                self.reported.add(event)
                yield {"event": event, **_first(events(), kinds, board)}
        if board.request and (board.request.action, board.request.description) != self.request:
            self.request = (board.request.action, board.request.description)
            yield {"event": "request", "action": self.request[0], "description": self.request[1]}

    def suspicion(self, deadline: Deadline | None, now_ns: int) -> Iterator[Observation]:
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


def _first(events: list[BoardEvent], kinds: tuple[str, ...], board: Snapshot) -> Observation:
    """When the ring first has one of these kinds, and at which step; the last activity where the ring has none."""
    found = next((event for event in events if event.kind in kinds), None)
    first: Observation = {"at": (found.at_ns if found else board.last_activity_ns) / SECOND}
    if kinds == ("step",):
        first["step"] = found.value if found else board.step
        if board.counted:  # from the start of this process: not the training's own number
            first["counted"] = True
    return first


def suspicion_at(deadline: Deadline) -> int:
    """The moment at which a rank is called late in the journal."""
    return deadline.at_ns - nanoseconds((1 - SUSPICION) * deadline.limit)
