"""A thread that talks to the rendezvous store, so that the launcher never waits for it.

It looks for the next cycle's record, moves this node's counter, and watches the counter of the next node by rank
(so the work per node does not grow with the job). What it finds is posted as an event; nothing is decided here.
Does not cover: nodes that the observer's own place in the ring does not reach (their neighbours watch them).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch.distributed import Store
from torch.distributed.elastic.rendezvous import RendezvousError

from .node_watch import SPINNING, STANDING, UNKNOWN, LocalProgress, Neighbour
from .reachable import Endpoint, refused
from .records import FIRST, Abandoned, HostLost, Moved, NodeLost, NodesWaiting, Record

LOOK = 0.1  # seconds between two looks at the store in a small job
NODES_PER_LOOK = 500  # of which larger jobs take longer, so that the store is not flooded
BEAT = 1.0
SILENT_HOST = 5.0  # seconds more than for a node before a store that does not answer is given up


def pause(world: int) -> float:
    """Seconds between two looks at the store in a job of this many nodes."""
    return LOOK * max(1.0, world / NODES_PER_LOOK)


class StoreWatch(threading.Thread):
    """Runs until :meth:`stop`, or until the store's host is gone."""

    def __init__(
        self,
        connect: Callable[[], Store],
        host: Endpoint,
        node: str,
        most: int,
        limit: float,
        post: Callable[[object], None],
        also: Callable[[Store], None] = lambda notes: None,
    ) -> None:
        super().__init__(name="holdfast-store-watch", daemon=True)
        self._connect = connect
        self._host = host
        self._store = connect()
        self._node = node
        self._most = most  # nodes that may take part
        self._limit = limit
        self._post = post
        self._also = also  # done with each beat
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._record = FIRST
        self._place: tuple[Record, int, int] | None = None
        self._neighbour = Neighbour(limit)
        self._others: Neighbour | None = None  # as a bystander: all of them by one counter
        self._waiting = -1
        self._told: set[object] = set()
        self._asked = 0.0
        self._contact = time.monotonic()
        self.progress = UNKNOWN
        self.abandoned = False  # as a bystander: there is nobody left

    def take_place(self, record: Record, rank: int, world: int) -> None:
        """This node takes part in the cycle of `record` as node `rank` of `world`."""
        with self._lock:
            self._record = record
            self._place = (record, rank, world)
            self._neighbour = Neighbour(self._limit)
            self._waiting = -1

    def expect(self, record: Record) -> None:
        """Look for the record after this one."""
        self._record = record

    def leave_place(self) -> None:
        """Between two cycles."""
        with self._lock:
            self._place = None

    def stand_by(self) -> None:
        """This node takes no part any more; post Abandoned when nobody else does either."""
        self._others = Neighbour(SPINNING * self._limit)

    def run(self) -> None:
        """Look, beat, watch."""
        beaten = 0.0
        while True:
            place = self._place
            if self._ended.wait(pause(place[2] if place else 1)):
                return
            try:
                now = time.monotonic()
                self._look_for_record(self._record)
                if now - beaten >= BEAT:
                    beaten = now
                    self._beat()
                    self._watch_others(now)
                    self._also(self._store)
                self._contact = time.monotonic()
            except (RuntimeError, RendezvousError):
                if self._ended.is_set() or not self._connected_again():
                    return

    def _connected_again(self) -> bool:
        """A connection may break by itself; the host is gone when nobody listens there any more.

        Where the host does not answer at all, time decides, as for a silent one (:meth:`contact_lost`).
        """
        while not self._ended.wait(LOOK):
            if self._host.refuses():
                self._post(HostLost(refused(self._host)))
                return False
            with suppress(RuntimeError):
                self._store = self._connect()
                return True
        return False

    def _look_for_record(self, record: Record) -> None:
        key = f"cycle/{record.cycle + 1}"
        if key not in self._told and self._store.check([key]):
            self._told.add(key)
            self._post(Moved(Record.decode(self._store.get(key))))

    def _beat(self) -> None:
        """Move this node's counter; that of the nodes that wait, or of the job as a whole, where it is ours to."""
        self._store.add(f"alive/{self._node}", 1)
        place = self._place
        if self._others is not None:
            return
        if place is None:
            self._store.add(f"waiting/{self._record.cycle}", 1)
        if place is None or place[1] == 0:
            self._store.add("pulse", 1)

    def _watch_others(self, now: float) -> None:
        if self._others is not None:
            waited = self._others.gone(self._store.add("pulse", 0), now, STANDING)
            if waited is not None:
                self.abandoned = True
                self._post(Abandoned(waited))
        with self._lock:
            if self._place is None:
                return
            record, rank, world = self._place
            neighbour = self._neighbour
        if rank == 0 and world < self._most:
            self._look_for_newcomers(record.cycle, world)
        if world > 1:
            self._watch_neighbour(record.cycle, (rank + 1) % world, neighbour, now)

    def _look_for_newcomers(self, cycle: int, world: int) -> None:
        """Nodes that wait for a place; not one that came and died."""
        count = self._store.add(f"joined/{cycle}", 0) - world
        beats = self._store.add(f"waiting/{cycle}", 0) if count > 0 else -1
        if count > 0 and self._waiting not in (-1, beats):
            self._post(NodesWaiting(cycle, count))
        self._waiting = beats

    def _watch_neighbour(self, cycle: int, rank: int, neighbour: Neighbour, now: float) -> None:
        name = self._store.get(f"node/{cycle}/{rank}").decode()
        counter = self._store.add(f"alive/{name}", 0)
        waited = neighbour.gone(counter, now, self.progress)
        if waited is not None and (cycle, rank) not in self._told:
            self._told.add((cycle, rank))
            self._post(NodeLost(cycle, name, waited))

    def contact_lost(self, now: float, progress: LocalProgress) -> str | None:
        """Why the store's host must be given up: it has not answered, and the local ranks stand still too."""
        self.progress = progress
        if now - self._asked > self._limit / 2:  # this process itself stood still
            self._contact = max(self._contact, now)
        self._asked = now
        silent = now - self._contact
        if silent < SILENT_HOST + progress.patience(self._limit):
            return None
        return f"{self._host} has not answered for {silent:.0f} s"

    def stop(self) -> None:
        """End the thread; one that is stuck in the store is left behind (it is a daemon)."""
        self._ended.set()
        self.join(1.0)
