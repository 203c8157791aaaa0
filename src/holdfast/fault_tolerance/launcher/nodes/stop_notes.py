"""What the nodes of a cycle write to each other, on where all ranks stop for one: in the store, or in memory.

Each question is one round trip (two to gather several texts) and may be asked twice, so a connection that broke is
made anew. What always holds: a question ends with its answer, or with HostGone when nobody listens at the store's
host any more or nobody waits for the answer.
Does not cover: a host that does not answer at all; the thread that asks is left behind (it is a daemon).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch.distributed import Store
from torch.distributed.elastic.rendezvous import RendezvousError

from .reachable import Endpoint, refused
from .store_call import HostGone

T = TypeVar("T")
AGAIN = 0.1  # seconds before a broken connection is made anew
NOTHING = "-"
WANTED = "wanted"


def key_of(cycle: int, key: str, subject: str = "stop") -> str:
    """Where a note of this cycle stands in the store."""
    return f"{subject}/{cycle}/{key}"


class MemoryNotes:
    """The notes of one node."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def put(self, key: str, text: str) -> None:
        """Write it."""
        self._texts[key] = text

    def look(self, key: str) -> str:
        """Read it; '' when nobody has written it."""
        return self._texts.get(key, "")

    def swap(self, key: str, old: str, new: str) -> str:
        """Write `new` where `old` stands ('': nobody has written it); says what stands there then."""
        if self.look(key) == old:
            self.put(key, new)
        return self.look(key)

    def gather(self, keys: Sequence[str]) -> list[str] | None:
        """Read all of these; None while one of them is missing."""
        return [self._texts[key] for key in keys] if all(key in self._texts for key in keys) else None

    def close(self) -> None:
        """Nothing to let go of."""


class StoreNotes:
    """The notes in the rendezvous store, over a connection of their own that is made when it is needed."""

    def __init__(
        self, connect: Callable[[], Store], host: Endpoint, cycle: int, subject: str = "stop"
    ) -> None:
        self._connect, self._host, self._cycle, self._subject = connect, host, cycle, subject
        self._store: Store | None = None
        self._closed = threading.Event()

    def put(self, key: str, text: str) -> None:
        """Write it."""
        self._ask(lambda store: store.set(self._key(key), text))

    def look(self, key: str) -> str:
        """Read it; '' when nobody has written it."""
        # Reads without waiting for the key and without making it, in one round trip.
        found = self._ask(lambda store: store.compare_set(self._key(key), NOTHING, NOTHING))
        return "" if found == NOTHING.encode() else found.decode()

    def swap(self, key: str, old: str, new: str) -> str:
        """Write `new` where `old` stands ('': nobody has written it); says what stands there then."""
        return self._ask(lambda store: store.compare_set(self._key(key), old, new)).decode()

    def gather(self, keys: Sequence[str]) -> list[str] | None:
        """Read all of these; None while one of them is missing."""
        names = [self._key(key) for key in keys]
        if not names:
            return []
        if not self._ask(lambda store: store.check(names)):
            return None
        return [text.decode() for text in self._ask(lambda store: store.multi_get(names))]

    def close(self) -> None:
        """Nobody waits for an answer any more; lets go of the connection."""
        self._closed.set()
        self._store = None

    def _key(self, key: str) -> str:
        return key_of(self._cycle, key, self._subject)

    def _ask(self, question: Callable[[Store], T]) -> T:
        while True:
            store = self._store
            if store is None and self._host.refuses():  # torch would try for minutes
                raise HostGone(refused(self._host))
            try:
                store = self._store = store or self._connect()
                return question(store)
            except (RuntimeError, RendezvousError) as error:
                self._store = None
                if self._closed.wait(AGAIN):
                    raise HostGone("this launcher ends") from error
