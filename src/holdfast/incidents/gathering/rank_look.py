"""One rank's evidence, part by part, so that what is there is used whatever comes of the rest.

Two samples wait for nobody and are taken by the caller. What may wait (in which call it sits, its files, the command
lines of its children) and asking the rank itself are for threads; each part is published when it is complete, and a
reader takes what there is.
Does not cover: time; `node` starts the threads and gives them up.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from ..evidence import Collective, Process, Thread
from . import children, process, pyspy
from .local_rank import LocalRank, Subject, subject
from .network_files import network_files
from .program import found
from .waiting_on import kernel_stack, system_call

SPIES = 2
"""How many py-spy run at once on a node."""
_FOR_THE_RANK = 0.6
"""Share of the time in which the rank itself may answer, where py-spy could look after it."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the rank itself, or py-spy, has told."""

    stacks: tuple[Thread, ...] = ()
    stacks_from: str = ""
    no_stacks: str = ""
    collectives: tuple[Collective, ...] = ()
    no_collectives: str = ""


class RankLook:
    """The parts that are known by now."""

    def __init__(self, who: LocalRank) -> None:
        self.who = who
        self.notes: list[str] = []
        self.told = Told()
        self.subject = Subject(who.pid, who.start_time)
        self._first: process.Sample | None = None
        self._last: process.Sample | None = None
        self._kids: tuple[int, ...] = ()
        self._kids_first: dict[int, children.Look] = {}
        self._kids_last: dict[int, children.Look] = {}
        self._commands: dict[int, str] = {}
        self._system_call = ""
        self._kernel_stack: tuple[str, ...] = ()
        self._network_files: tuple[str, ...] = ()

    @property
    def lives(self) -> bool:
        """Whether the process was there; one that only waits to be reaped was not."""
        return self._first is not None and not (
            self._first.stat.state in "ZX" and len(self._first.threads) < 2
        )

    def first_sample(self) -> None:
        """Which process matters, and how it is. Waits for nobody."""
        self.subject = subject(self.who)
        if self.subject.note:
            self.notes.append(self.subject.note)
        self._first = process.sample(self.subject.pid, self.subject.start_time)
        if self._first is not None:
            self.subject = replace(self.subject, start_time=self._first.stat.start_time)
            self._kids = children.below(self.subject.pid)
            self._kids_first = self._kids_last = children.sample(self._kids)

    def second_sample(self) -> None:
        """How it is now. Waits for nobody."""
        self._last = process.sample(self.subject.pid, self.subject.start_time)
        if self._last is None:
            self._first = None
            self.notes.append(f"Its process {self.subject.pid} ended while it was looked at.")
        self._kids_last = children.sample(self._kids) or self._kids_first

    def look_closer(self) -> None:
        """What may wait: for a thread."""
        pid = self.subject.pid
        self._system_call = system_call(pid, self._kids)
        self._kernel_stack = kernel_stack(pid)
        self._network_files = network_files(pid)
        children.commands(self._kids[: children.MOST], self._commands)

    def process(self) -> Process:
        """All that is known of the process by now."""
        return replace(
            process.process(self._first, self._last),
            system_call=self._system_call,
            kernel_stack=self._kernel_stack,
            network_files=self._network_files,
            children=children.children(self._kids_first, self._kids_last, dict(self._commands)),
        )

    def ask(self, until: float, may_signal: bool, spies: threading.Semaphore) -> None:
        """Have it tell its stacks, and py-spy where it does not, by `until` (monotonic seconds): for a thread."""
        spied = bool(found("py-spy"))
        now = time.monotonic()
        self.told = self._asked(now + (until - now) * _FOR_THE_RANK if spied else until, may_signal)
        if self.told.stacks_from == "the rank itself":
            return
        if not spies.acquire(timeout=max(until - time.monotonic(), 0.0)):
            return
        try:
            stacks, why_not = pyspy.stacks(self.subject.pid, until)
        finally:
            spies.release()
        if stacks:
            self.told = replace(self.told, stacks=stacks, stacks_from="py-spy", no_stacks="")
        elif not self.told.stacks:
            reasons = (self.told.no_stacks.rstrip("."), why_not)
            self.told = replace(self.told, no_stacks="; ".join(reason for reason in reasons if reason))

    def _asked(self, until: float, may_signal: bool) -> Told:
        if not self.who.prefix:
            return Told(no_stacks="it cannot be asked", no_collectives="it cannot be asked")
        try:
            from .asking import ask

            who = self.subject
            found = ask(self.who.prefix, who.pid, who.start_time, until, may_signal=may_signal)
        except Exception as error:  # py-spy may still tell
            return Told(no_stacks=f"asking it failed: {error!r} (please report this)")
        return Told(found.stacks, found.stacks_from, found.no_stacks, found.collectives, found.no_collectives)
