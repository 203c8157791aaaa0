"""What a node says while it waits for a place in a cycle, and whom it waited for in vain.

Does not cover: the names of nodes that were never part of the job; nobody knows them.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from torch.distributed import Store
from torch.distributed.elastic.rendezvous import RendezvousParameters

from .records import Record
from .returning import Silence

logger = logging.getLogger("holdfast.launcher")
SAY_WAITING_AFTER = 2.0


class Waiting:
    """Says what is waited for, unless it comes soon; `arrivals` nodes came for this cycle, this one included."""

    def __init__(
        self, parameters: RendezvousParameters, notes: Store, node: str, record: Record, arrivals: int
    ) -> None:
        self._parameters, self._notes, self._node = parameters, notes, node
        self._record, self._arrivals = record, arrivals
        self._silence: Silence | None = None
        self._timer = threading.Timer(SAY_WAITING_AFTER, self._say)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def _say(self) -> None:
        least, most, cycle = self._parameters.min_nodes, self._parameters.max_nodes, self._record.cycle
        who, wanted = f"node {self._node}", f"{least}" if least == most else f"{least} to {most}"
        if self._arrivals > most:
            logger.warning("%s is a spare: the job runs on %d nodes, this one waits", who, most)
        elif self._notes.check([f"rank_store/{cycle}"]):
            logger.warning("%s came while cycle %d runs, and is to be taken in by a restart", who, cycle)
        elif self._arrivals >= least:
            text = "%s waits %d s for more nodes to join cycle %d (%s can take part), then begins"
            logger.warning(text, who, self._seconds("last_call_timeout", 30), cycle, wanted)
        else:
            text = "%s waits for other nodes to join cycle %d: %s needed; gives up after %d s"
            logger.warning(text, who, cycle, wanted, self._seconds("join_timeout", 600))
            if (
                self._record.node == self._node
            ):  # it is enough that one node looks: the one that began the cycle
                self._silence = Silence(self._notes, cycle)

    def _seconds(self, name: str, default: int) -> int:
        """A time of torch's rendezvous, or torch's own default for it."""
        given = self._parameters.get_as_int(name)
        return default if given is None else given

    def gave_up(self) -> str:
        """In words, that nobody else came, and who of the cycle before has shown no sign of life meanwhile."""
        silent = self._silence.names() if self._silence else []
        whom = f": no sign of node {', '.join(silent)}" if silent else ""
        return f"gave up waiting for the other nodes (rendezvous timeout){whom}"
