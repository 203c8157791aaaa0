"""The job as one node sees it: how to join the next cycle, how to begin one, how to end it for everybody.

One node needs nobody's agreement (:class:`SingleNodeJob`, here); several agree through the rendezvous store
(:mod:`.store_job`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from ..ranks.stop_pages import StopPages
from .node_watch import UNKNOWN, LocalProgress
from .rank_store import RankStore
from .records import FIRST, PREEMPTED, Record
from .stop_notes import MemoryNotes, StoreNotes

LOOPBACK = "127.0.0.1"


class JobEnded(Exception):
    """The job is over: the record says how."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.reason)
        self.record = record


class JobLost(Exception):
    """This node cannot go on with the job; the text says why and what the user can do."""

    host_gone = ""  # how we know that the node that hosts the rendezvous is gone, where that is why


def host_gone(reason: str) -> JobLost:
    """The node that hosts the store, on which the others agree, is gone; `reason` says how we know, and its address."""
    lost = JobLost(
        f"the node that hosts the rendezvous is gone ({reason}). Start the job again; its ranks resume from their last "
        "checkpoint"
    )
    lost.host_gone = reason
    return lost


class Job(ABC):
    """What the agent needs of the job; `record` is that of the cycle that runs or is being joined."""

    record: Record = FIRST
    node_timeout = 0.0  # seconds; of no meaning where there is one node only
    is_host = False  # of the store that the nodes agree through
    host = ""  # where that store is, as the nodes are told
    progress: LocalProgress = UNKNOWN  # of the local ranks, as last seen

    @abstractmethod
    def join(self) -> RendezvousInfo:
        """Take part in the current cycle. Raises JobEnded, JobLost or Interrupted."""

    @abstractmethod
    def propose(self, record: Record) -> Record:
        """Begin the next cycle (or end the job); returns the record that counts, ours or an earlier one."""

    @abstractmethod
    def ranks_finished(self, *, preempted: bool, preempted_code: int) -> Record | None:
        """This node's ranks are done; the record of the job's end once all nodes' ranks are, else None."""

    @abstractmethod
    def close(self) -> None:
        """Leave the job."""

    def advance(self, record: Record) -> None:
        """The cycle to join next."""
        self.record = record

    def rank_store_failure(self) -> str | None:
        """Why the store that this node hosts for the ranks of this cycle could not be started, or None."""
        return None

    def contact_lost(self, now: float) -> str | None:
        """Why the other nodes must be given up, or None."""
        return None

    def withdraw(self) -> None:  # noqa: B027 - nobody else waits by default
        """Told to leave while waiting for others: they must not count on this node."""

    def look_for_stops(  # noqa: B027 - no other node could be told
        self, pages: StopPages, post: Callable[[object], None]
    ) -> None:
        """From now on notice when another node is told to stop and ranks on these pages take part; `post` is told."""

    def prepare(self) -> None:  # noqa: B027 - nothing is known of the next cycle by default
        """Training is steady: make what the next cycle needs, if that does not depend on other nodes."""

    def stop_notes(self) -> MemoryNotes | StoreNotes:
        """What the nodes of this cycle share while they agree where all ranks stop."""
        return MemoryNotes()

    def incident_notes(self) -> MemoryNotes | StoreNotes:
        """What the nodes of this cycle tell each other of an incident in it."""
        return MemoryNotes()

    def stand_by(self) -> None:  # noqa: B027 - nothing to host by default
        """This node stays as the store's host only."""

    def wait_as_host(self, seconds: float) -> None:  # noqa: B027 - nothing to host by default
        """Stay for the others' sake for at most this long when this node hosts what they need."""


class SingleNodeJob(Job):
    """A job of one node: whatever is proposed counts. It listens on loopback only."""

    def __init__(self) -> None:
        self._store: RankStore | None = None
        self._next: RankStore | None = None

    def prepare(self) -> None:
        """The next cycle's store: torch takes seconds to make one now and then."""
        self._next = self._next or RankStore(LOOPBACK)

    def join(self) -> RendezvousInfo:
        """At once: a fresh store for the ranks, node rank 0 of 1."""
        if self._store:
            self._store.close()
        if self._next and self._next.failure:
            self._next = None
        self._store, self._next = self._next or RankStore(LOOPBACK), None
        where = RendezvousStoreInfo(LOOPBACK, self._store.port)
        return RendezvousInfo(HashStore(), 0, 1, where)

    def rank_store_failure(self) -> str | None:
        """See Job."""
        return self._store.failure if self._store else None

    def propose(self, record: Record) -> Record:
        """Nobody else could have."""
        return record

    def ranks_finished(self, *, preempted: bool, preempted_code: int) -> Record:
        """All nodes' ranks are this node's ranks."""
        return finished(self.record, preempted=preempted, preempted_code=preempted_code)

    def close(self) -> None:
        """Stop serving the ranks."""
        for store in (self._store, self._next):
            if store:
                store.close()


def finished(record: Record, *, preempted: bool, preempted_code: int, node: str = "") -> Record:
    """The END record of a job whose ranks are all done."""
    reason = PREEMPTED if preempted else "all ranks succeeded"
    return record.next("end", reason=reason, node=node, exit_code=preempted_code if preempted else 0)


class JobRendezvous(RendezvousHandler):
    """The job under the interface that torch's agent asks for its place in the world."""

    def __init__(self, job: Job, run_id: str) -> None:
        self._job = job
        self._run_id = run_id

    def get_backend(self) -> str:
        """The store behind it."""
        return "c10d"

    @property
    def use_agent_store(self) -> bool:
        """The ranks connect to a store that the launcher hosts."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the current cycle."""
        return self._job.join()

    def is_closed(self) -> bool:
        """Asked by nobody here; the job's end is a record."""
        return False

    def set_closed(self) -> None:
        """The job's end is a record, see :class:`Job`."""

    def num_nodes_waiting(self) -> int:
        """Told by an event instead."""
        return 0

    def get_run_id(self) -> str:
        """The id of the job."""
        return self._run_id

    def shutdown(self) -> bool:
        """See :meth:`Job.close`."""
        return True
