"""What the journal records of one attempt: the first to fail and why, who was preempted, how far it came. Pure.

What always holds: the journal's own reading decides what came first (`journal.incidents`), and only a fault of
the last restart cycle is what ended the attempt: the launcher had answered the earlier ones with a restart.

Does not cover: an attempt whose journal is missing or somewhere else; its account is empty then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..journal.event import Event, cycles
from ..journal.incidents import Incident, incidents

FAULTS = frozenset({"hang", "crash", "exit", "node lost", "launcher lost", "job lost"})
"""Kinds of incidents that can end an attempt; the others are what somebody asked for."""

LONGEST = 300
"""Characters of a cause that are kept: a line for people, and the ledger stays small."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The fault that ended an attempt."""

    what: str
    """One line."""
    node: str = ""
    rank: int | None = None
    kind: str = "exit"
    """As `Incident.kind`."""


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of an attempt from its journal; the defaults say that nothing is."""

    cause: Cause | None = None
    preempted_by: str = ""
    """The signal that a launcher got and passed on: `SIGTERM`."""
    request: str = ""
    """Why a rank asked for the end of the whole job."""
    started: bool = False
    """At least one rank was started."""
    resumed_step: int | None = None
    """The first step of the restart cycle that began the latest: what was saved before it. None where none is told."""
    last_step: int | None = None
    """The highest step that any event tells: a lower bound of how far it came."""
    nodes: tuple[str, ...] = ()
    """Who took part."""
    unread: bool = False
    """There is a journal, and it could not be read: what it does not tell may have been."""


def account_of(events: Iterable[Event], since: float = float("-inf")) -> Account:
    """Read the events (as `read_run` gives them) of the attempt that began at `since`, unix seconds."""
    own = [event for event in events if event.t >= since]
    found = incidents(own)
    fault = _fault_of_the_last_cycle(own, found)
    asked = [incident.what for incident in found if incident.kind == "shutdown"]
    preempted = [_text(event.get("signal")) or "a signal" for event in own if event.kind == "preemption"]
    return Account(
        cause=Cause(short(fault.what), fault.node, fault.rank, fault.kind) if fault else None,
        preempted_by=preempted[0] if preempted else "",
        request=short(asked[-1]) if asked else "",
        started=any(event.kind == "rank_start" for event in own),
        resumed_step=_resumed(own),
        last_step=max(_steps(own, "first_step", "verdict", "suspicion"), default=None),
        nodes=tuple(sorted({event.source for event in own if event.kind == "cycle_start"})),
    )


def _fault_of_the_last_cycle(events: list[Event], found: list[Incident]) -> Incident | None:
    sorted_cycles = cycles(events)
    if not sorted_cycles:
        return None
    last = sorted_cycles[-1]
    own = [
        each for each in found if (each.run, each.cycle) == (last.run, last.number) and each.kind in FAULTS
    ]
    return own[0] if own else None


def short(text: str) -> str:
    """One line of at most `LONGEST` characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _resumed(events: list[Event]) -> int | None:
    """Ranks tell their first step at different moments, so a cycle's is the lowest; a cycle may begin anew from 0."""
    begun = [_steps(cycle.events, "first_step") for cycle in cycles(events)]
    return max((min(steps) for steps in begun if steps), default=None)


def _steps(events: list[Event], *kinds: str) -> list[int]:
    """The steps that the program told. Counted ones begin anew with each process, so they say nothing of a resume."""
    found = [event.get("step") for event in events if event.kind in kinds and not _counted(event)]
    return [step for step in found if isinstance(step, int) and not isinstance(step, bool)]


def _counted(event: Event) -> bool:
    return bool(event.get("counted")) or event.get("connected") is False


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
