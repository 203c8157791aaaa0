"""The journal's events sorted into runs and restart cycles. Pure.

A *run* is one life of the job: from the first `cycle_start` of cycle 0 to the end. A run directory that is used again,
as when a scheduler requeues the job, holds several. A *cycle* is one start of all ranks, on all nodes together.

What always holds: every event is in exactly one cycle, cycles stand in the order in which they began, and a node that
joins late or is started again is sorted into the cycle that the others are in.

Does not cover: two runs at once in one run directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .event import Event


@dataclass(slots=True)
class Cycle:
    """All nodes' events of one restart cycle, in order. Events before the first start are in cycle 0."""

    run: int
    number: int
    events: list[Event] = field(default_factory=list)

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]


def cycles(events: Iterable[Event]) -> list[Cycle]:
    """Sort events, as `read_run` gives them, into cycles."""
    sorter = _Sorter()
    for event in events:
        sorter.place(event)
    return sorter.cycles


def _cycle_of(event: Event) -> int | None:
    number = event.get("cycle")
    if not isinstance(number, int):
        return None
    # A restart names the cycle that it leads to; it is told, and belongs, at the end of the one before.
    return number - 1 if event.kind == "restart" else number


class _Sorter:
    def __init__(self) -> None:
        self.cycles: list[Cycle] = []
        self._begun: set[str] = set()  # who has begun a cycle in this run
        self._gone: set[str] = set()  # who has ended it; an excluded node does so while the others carry on

    def place(self, event: Event) -> None:
        """Append the event to its cycle."""
        number = _cycle_of(event)
        if event.kind == "cycle_start" and number is not None:
            self._begin(event.teller, number)
        elif event.kind == "run_start" and self._is_over:
            self._new_run()
        elif event.kind == "run_end":
            self._gone.add(event.teller)
        self._find(number).events.append(event)

    def _begin(self, teller: str, number: int) -> None:
        if number == 0 and (teller in self._begun or self._is_over):
            self._new_run()
        self._begun.add(teller)
        if not any(cycle.number == number for cycle in self._of_this_run()):
            self.cycles.append(Cycle(self._run, number))

    def _new_run(self) -> None:
        self.cycles.append(Cycle(self._run + 1, 0))
        self._begun.clear()
        self._gone.clear()

    @property
    def _is_over(self) -> bool:
        return bool(self._begun) and self._begun <= self._gone

    @property
    def _run(self) -> int:
        return self.cycles[-1].run if self.cycles else 1

    def _of_this_run(self) -> list[Cycle]:
        return [cycle for cycle in self.cycles if cycle.run == self._run]

    def _find(self, number: int | None) -> Cycle:
        """The named cycle of this run, else the one that runs now."""
        if not self.cycles:
            self.cycles.append(Cycle(1, 0))
        named = [cycle for cycle in self._of_this_run() if cycle.number == number]
        return named[-1] if named else self.cycles[-1]
