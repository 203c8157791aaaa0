"""Brings the nodes of one cycle together: torch's rendezvous, then a roll call, then a fresh store for the ranks.

Each cycle is a torch rendezvous of its own, whose comparison of wall clocks between nodes (its keep-alive) is
switched off. So it may count a node that died while it waited; the roll call is what finds that out before any rank
is started. Nodes that trained in the cycle before come before spares, so that a restart moves the job nowhere.
Does not cover: with ``--nnodes min:max`` torch ends the waiting for more nodes by wall clocks; nodes whose clocks
differ by more than ``last_call_timeout`` may start with fewer than could have come (the others then join later).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

from torch.distributed import DistStoreError, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler

from .job import JobLost
from .precedence import Turn
from .rank_store import RankStore
from .records import Record
from .returning import not_back
from .store_watch import pause
from .waiting import Waiting

logger = logging.getLogger("holdfast.launcher")
NEVER = 10**6  # seconds; torch's keep-alive compares wall clocks of different nodes, so it must never strike
NO_STORE = SimpleNamespace(port=0)
ROLL_CALL = 5.0  # seconds more than for a lost node: nodes look for the rendezvous' end once a second

TakePlace = Callable[[Record, RendezvousInfo], None]


class Incomplete(Exception):
    """The rendezvous counted a node that does not answer."""


class Gathering:
    """One node's part in the rendezvous of one cycle after the other. `limit` is the node timeout in seconds, `note`
    writes into the journal."""

    def __init__(
        self,
        parameters: RendezvousParameters,
        meeting: Store,
        notes: Store,
        node: str,
        order: int,
        address: str,
        limit: float,
        note: Callable[..., None],
    ) -> None:
        self._parameters = parameters
        self._limit = limit
        self.use(meeting, notes)
        self._node, self._note = node, note
        self._address = address
        # torch ranks nodes in the order of their descriptions: by node rank where given, else by address.
        self._description = f"{order:06d}-{address}-{node}"
        self._handler: DynamicRendezvousHandler | None = None
        self._stores: list[RankStore] = []  # of the ranks, when this is node rank 0
        self._counted = -1

    def use(self, meeting: Store, notes: Store) -> None:
        """Torch's rendezvous works on `meeting`, our own keys are in `notes`: the same connection to the store."""
        # torch waits in the store for a word of node rank 0; if that one is dead, no longer than a roll call.
        meeting.set_timeout(timedelta(seconds=self._limit + ROLL_CALL))
        self._meeting, self._notes = meeting, notes

    def join(self, record: Record, *, was_spare: bool, take_place: TakePlace) -> RendezvousInfo:
        """Wait for enough nodes; raises Incomplete, JobLost when they do not come, torch's other rendezvous errors."""
        self.leave()
        cycle = record.cycle
        if was_spare:
            self._let_pass(record)
        self._handler = self._new_handler(record)
        waiting = self._arrive(record)
        try:
            with waiting:
                info = self._handler.next_rendezvous()
            where = self._roll_call(info, cycle)
        except RendezvousTimeoutError as error:
            raise JobLost(waiting.gave_up()) from error
        except DistStoreError as error:  # a word that was waited for did not come
            raise Incomplete(f"not every node of cycle {cycle} answered") from error
        if info.rank == 0:
            self._note_who_is_missing(cycle)
        take_place(record, info)
        return RendezvousInfo(info.store, info.rank, info.world_size, where)

    def _let_pass(self, record: Record) -> None:
        """As a spare: let those who trained until now come back first, for as long as a lost node may take."""
        until = time.monotonic() + self._limit + ROLL_CALL  # they may have to stop their ranks first
        turn = Turn(record, self._places(record), until)
        while not turn.has_come(self._notes, time.monotonic()):
            time.sleep(0.05)

    def _places(self, record: Record) -> int:
        return record.places(self._parameters.min_nodes, self._parameters.max_nodes)

    def attendance(self, cycle: int) -> tuple[int, int]:
        """How many nodes take part in a cycle that has begun, and how many came since and wait."""
        present = self._notes.add(f"present/{cycle}", 0)
        return present, max(0, self._notes.add(f"joined/{cycle}", 0) - present)

    def _new_handler(self, record: Record) -> DynamicRendezvousHandler:
        given = self._parameters
        run_id = f"{given.run_id}.cycle-{record.cycle}"
        options = {**given.config, "keep_alive_interval": NEVER, "keep_alive_max_attempt": 1000}
        parameters = RendezvousParameters(
            given.backend,
            given.endpoint,
            run_id,
            given.min_nodes,
            self._places(record),
            local_addr=self._description,
            **options,
        )
        backend = C10dRendezvousBackend(self._meeting, run_id)
        handler = create_handler(self._meeting, backend, parameters)
        # torch would open a store that the ranks of all cycles share. Its own switch against that is a variable,
        # which would reach the ranks, whose environment is the user's.
        handler._create_tcp_store_server = lambda *_: NO_STORE  # type: ignore[assignment,method-assign]
        return handler

    def _roll_call(self, info: RendezvousInfo, cycle: int) -> RendezvousStoreInfo:
        """Where the ranks of this cycle meet: node rank 0 opens a fresh store, and says where once all are there."""
        rank, world, key = info.rank, info.world_size, f"rank_store/{cycle}"
        self._notes.set(f"node/{cycle}/{rank}", self._node)
        self._notes.add(f"present/{cycle}", 1)
        if rank == 0:
            self._stores.append(RankStore(self._address))
            self._await(cycle, world, lambda: self._notes.add(f"present/{cycle}", 0) >= world)
            self._notes.set(key, f"{self._address} {self._stores[-1].port}")
        else:
            self._await(cycle, world, lambda: bool(self._notes.check([key])))
        self.close_stores(
            but=int(rank == 0)
        )  # those of cycles before: by now nobody's ranks use them any more
        address, port = self._notes.get(key).decode().split()
        return RendezvousStoreInfo(address, int(port))

    def _await(self, cycle: int, world: int, answered: Callable[[], bool]) -> None:
        until = time.monotonic() + self._limit + ROLL_CALL
        while not answered():
            if self._notes.check([f"cycle/{cycle + 1}"]):
                raise Incomplete(f"cycle {cycle} was called off")
            if time.monotonic() > until:
                present = self._notes.add(f"present/{cycle}", 0)
                raise Incomplete(f"{world - present} of {world} nodes of cycle {cycle} did not answer")
            time.sleep(max(0.02, pause(world) / 4))

    def began(self, cycle: int) -> bool:
        """Whether all nodes of this cycle were found, so that its ranks could start."""
        return bool(self._notes.check([f"rank_store/{cycle}"]))

    def _arrive(self, record: Record) -> Waiting:
        """Count this node, once in each cycle, as one that has come for a place."""
        arrivals = self._notes.add(f"joined/{record.cycle}", int(self._counted != record.cycle))
        self._counted = record.cycle
        return Waiting(self._parameters, self._notes, self._node, record, arrivals)

    def _note_who_is_missing(self, cycle: int) -> None:
        earlier, missing = not_back(self._notes, cycle)
        if missing:
            self._note("node_not_back", cycle=earlier, lost=missing)

    def call_off(self, record: Record) -> None:
        """End the rendezvous of this cycle for everybody; from any thread, whatever another one does here."""
        self._new_handler(record).shutdown()

    def leave(self) -> None:
        """The cycle is over: close its rendezvous. Its store stays, as other nodes' ranks may still be saving."""
        if self._handler:
            self._handler.shutdown()
            self._handler = None

    def rank_store_failure(self) -> str | None:
        """Why the newest store of the ranks could not be started, where this node hosts it."""
        return self._stores[-1].failure if self._stores else None

    def close_stores(self, *, but: int = 0) -> None:
        """Close all but the newest so many."""
        while len(self._stores) > but:
            self._stores.pop(0).close()
