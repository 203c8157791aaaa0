"""A job of several nodes, which agree through torch's c10d rendezvous store.

Which cycle is current, why it began and how many restarts were spent stands in one record per cycle
(:mod:`.records`); how the nodes of a cycle find each other is in :mod:`.gathering`. What always holds: no call here
waits for a store that does not answer longer than it takes to give its host up, and signals are heard meanwhile.
Does not cover: the loss of the node that hosts the store. The others say so, stop their ranks and exit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from torch.distributed import PrefixStore, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousParameters,
)

from ..ranks.stop_pages import StopPages
from .gathering import Gathering, Incomplete
from .job import Job, JobEnded, JobLost, finished, host_gone
from .meeting import endpoint_of, meet
from .node_count import NodeCount, say
from .node_watch import STANDING
from .reachable import Endpoint, listens_on, own_address, refused
from .records import END, JOIN, RESTART, Record
from .stop_notes import MemoryNotes, StoreNotes
from .stop_watch import StopWatch
from .store_call import HostGone, ask
from .store_watch import StoreWatch, pause

T = TypeVar("T")
logger = logging.getLogger("holdfast.launcher")
FAREWELL = 3.0  # seconds the host stays for the others to read how the job ended (spares look once a second)


class StoreJob(Job):
    """One node's part in a job of several; `note` writes into the journal."""

    def __init__(
        self,
        parameters: RendezvousParameters,
        node: str,
        order: int,
        node_timeout: float,
        note: Callable[..., None],
    ) -> None:
        self._parameters = parameters
        self._node = node
        self._limit = self.node_timeout = node_timeout
        self._meeting = meet(parameters, node)
        where = endpoint_of(parameters)
        self.is_host = listens_on(where.port)
        address = parameters.local_addr or own_address(where.host, is_host=self.is_host)
        self.host = str(where)
        self._endpoint = Endpoint("127.0.0.1", where.port) if self.is_host else where
        self._store = self._notes_on(self._meeting)
        self._store.add("launchers", 1)
        self._count = NodeCount(node, parameters.min_nodes, parameters.max_nodes)
        say(self._count.compare(self._store))
        self._gathering = Gathering(
            parameters, self._meeting, self._store, node, order, address, node_timeout, note
        )
        self._world = 0
        self._was_spare = self._withdrawn = False
        self._stop_watch: StopWatch | None = None
        self._place = (-1, 0)  # the last cycle that this node took part in, and as which node
        self.watch: StoreWatch | None = None

    def _notes_on(self, store: Store) -> Store:
        """Our own keys, apart from torch's."""
        return PrefixStore(f"holdfast/{self._parameters.run_id}", store)

    def start_watch(self, post: Callable[[object], None]) -> None:
        """Watch the other nodes from now on; `post` gets what is new."""
        # A connection of its own: on one, a question waits for the answer to the question before.
        self.watch = StoreWatch(
            lambda: self._notes_on(self._meeting.clone()),  # type: ignore[attr-defined]  # missing in torch's stubs
            self._endpoint,
            self._node,
            self._parameters.max_nodes,
            self._limit,
            post,
            self._with_each_beat,
        )
        self.watch.start()

    def _with_each_beat(self, notes: Store) -> None:
        say(self._count.look(notes))
        cycle, node = self._place
        if self._stop_watch is not None and cycle == self.record.cycle:
            self._stop_watch.look(notes, cycle, node)

    def look_for_stops(self, pages: StopPages, post: Callable[[object], None]) -> None:
        """See Job."""
        self._stop_watch = StopWatch(pages, post)

    def stop_notes(self) -> MemoryNotes | StoreNotes:
        """In the rendezvous store, over a connection of their own."""
        return self._shared_notes("stop")

    def incident_notes(self) -> MemoryNotes | StoreNotes:
        """In the rendezvous store, over a connection of their own."""
        return self._shared_notes("incident")

    def _shared_notes(self, subject: str) -> MemoryNotes | StoreNotes:
        if self._world == 1:
            return MemoryNotes()
        connect = lambda: self._notes_on(self._meeting.clone())  # type: ignore[attr-defined]  # noqa: E731
        return StoreNotes(connect, self._endpoint, self.record.cycle, subject)

    def _ask(self, question: Callable[[], T]) -> T:
        """The store's answer; raises JobLost when there will be none."""
        try:
            return ask(lambda: self._revived(question), self._given_up)
        except (HostGone, RendezvousError, RuntimeError) as error:
            raise host_gone(self._how(error)) from error

    def _revived(self, question: Callable[[], T]) -> T:
        """Ask on a connection that works: one that lay idle while the ranks trained may have been cut on the way.

        Only this check is repeated, never a question: it might have been counted already.
        """
        try:
            self._store.add("check", 0)
        except RuntimeError:
            if self._endpoint.refuses():
                raise
            self._meeting = self._meeting.clone()  # type: ignore[attr-defined]  # missing in torch's stubs
            self._store = self._notes_on(self._meeting)
            self._gathering.use(self._meeting, self._store)
        return question()

    def _how(self, error: Exception) -> str:
        if isinstance(error, HostGone):
            return str(error)
        return refused(self._endpoint) if self._endpoint.refuses() else f"{self.host}: {_first_line(error)}"

    def _given_up(self, now: float) -> str | None:
        # Nobody asks while ranks train: there is no progress that could excuse the silence.
        return self.watch.contact_lost(now, STANDING) if self.watch else None

    # -- cycles -----------------------------------------------------------------------------------

    def join(self) -> RendezvousInfo:
        """Wait for enough nodes and take a place among them; says what it waits for."""
        return self._ask(self._join)

    def _join(self) -> RendezvousInfo:
        while not self._withdrawn:
            self.advance(self._current())
            if self.record.kind == END:
                raise JobEnded(self.record)
            try:
                return self._gathering.join(
                    self.record, was_spare=self._was_spare, take_place=self._take_place
                )
            except (RendezvousClosedError, RendezvousGracefulExitError) as closed:
                # Another cycle has begun while this node waited; its record was there before the closing.
                # Graceful is for those that torch had listed as spares; one that was let wait before, it never saw.
                self._was_spare |= isinstance(closed, RendezvousGracefulExitError)
                time.sleep(0.05)
            except Incomplete as error:
                logger.warning("%s: the nodes gather again, no rank was started", error)
                self._propose(self.record.next(JOIN, reason=str(error), node=self._node))
        raise JobLost("this node has withdrawn")

    def _take_place(self, record: Record, info: RendezvousInfo) -> None:
        self._world, self._was_spare = info.world_size, False
        self._place = (record.cycle, info.rank)
        assert self.watch is not None
        self.watch.take_place(record, info.rank, info.world_size)

    def withdraw(self) -> None:
        """Told to leave while waiting for others: they must not count on this node."""
        self._withdrawn = True
        with suppress(JobLost):
            self._ask(self._call_off)

    def _call_off(self) -> None:
        record = self.record
        if self._gathering.began(record.cycle):
            return  # it runs without this node, a spare
        reason = f"node {self._node} left before cycle {record.cycle} began"
        self._write(record.next(JOIN, reason=reason, node=self._node))
        self._gathering.call_off(record)

    def _current(self) -> Record:
        """The newest record; node 0 may have died between writing it and pointing at it, so look beyond."""
        record = self.record
        while self._store.check([f"cycle/{record.cycle + 1}"]):
            record = Record.decode(self._store.get(f"cycle/{record.cycle + 1}"))
        return record

    def propose(self, record: Record) -> Record:
        """The first node to write the record of a cycle decides; the old cycle's rendezvous is closed."""

        def question() -> Record:
            present, others = self._gathering.attendance(record.cycle - 1)
            return self._propose(replace(record, back=present - record.lost, others=others))

        return self._ask(question)

    def _write(self, record: Record) -> Record:
        return Record.decode(self._store.compare_set(f"cycle/{record.cycle}", "", record.encode()))

    def _propose(self, record: Record) -> Record:
        counts = self._write(record)
        if counts == record and record.kind == RESTART and record.lost:
            self._store.add("bye", record.lost)  # those will not say it themselves
        if self.watch:
            self.watch.leave_place()
        self._gathering.leave()
        return counts

    def advance(self, record: Record) -> None:
        """The cycle to join next; its successor is looked for from now on."""
        super().advance(record)
        if self.watch:
            self.watch.expect(record)

    def ranks_finished(self, *, preempted: bool, preempted_code: int) -> Record | None:
        """Count this node as done; the last one ends the job."""
        return self._ask(lambda: self._ranks_finished(preempted, preempted_code))

    def _ranks_finished(self, preempted: bool, preempted_code: int) -> Record | None:
        cycle = self.record.cycle
        if preempted:
            self._store.set(f"preempted/{cycle}", "1")
        if self._store.add(f"done/{cycle}", 1) < self._world:
            return None
        preempted = self._store.check([f"preempted/{cycle}"])
        end = finished(self.record, preempted=preempted, preempted_code=preempted_code, node=self._node)
        return self._propose(end)

    def rank_store_failure(self) -> str | None:
        """See Job."""
        return self._gathering.rank_store_failure()

    # -- the end ----------------------------------------------------------------------------------

    def contact_lost(self, now: float) -> str | None:
        """Why the store's host must be given up."""
        return self.watch.contact_lost(now, self.progress) if self.watch else None

    def stand_by(self) -> None:
        """This node stays as the store's host only: it is told when there is nobody left to stay for."""
        if self.watch:
            self.watch.stand_by()

    def wait_as_host(self, seconds: float) -> None:
        """The store ends with this process: let the others read how the job ended first, if there are any."""
        if not self.is_host or (self.watch and self.watch.abandoned):
            return
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._store.add("bye", 0) < self._store.add("launchers", 0) - 1:
            time.sleep(0.02)

    def close(self) -> None:
        """Say good-bye; the host waits a moment for the others'."""
        stay = FAREWELL + 2 * pause(self._world)
        until = time.monotonic() + (stay if self.is_host else 0.0) + 1.0
        with suppress(HostGone, RuntimeError):
            ask(lambda: self._say_goodbye(stay), lambda now: "silent" if now > until else None)
        if self.watch:
            self.watch.stop()
        self._gathering.close_stores()

    def _say_goodbye(self, stay: float) -> None:
        if self.is_host:
            self.wait_as_host(stay)
        else:
            self._store.add("bye", 1)


def _first_line(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause).splitlines()[0] if str(cause) else type(cause).__name__
