"""A fresh store for the ranks of each cycle, hosted by the launcher of node 0.

Restarted ranks that share a store with the dead ones read the dead ranks' gloo addresses and hang (torch 2.13
with its default store sharing never recovers). The listening socket is bound here, so the port is known and
connectable before any rank starts; the server behind it is made in a thread, because constructing a TCPStore
takes 5 s about once in a hundred times.
What always holds: a store whose address is an address of this machine listens at that address only, so with a
loopback address it is out of other machines' reach.
Does not cover: authentication; torch's store has none. An address that is a name, or that is only translated to
this machine: then the store listens on all of its addresses.
"""

from __future__ import annotations

import errno
import socket
import threading

from torch.distributed import TCPStore

BACKLOG = 2048
EVERYWHERE = "127.0.0.1"  # by which torch's own client reaches a server that listens on all addresses


class RankStore:
    """A TCPStore server on a port that the kernel chose; the ranks reach it at `address`.

    Raises OSError when no port can be had.
    """

    def __init__(self, address: str) -> None:
        listener = _listen_at(address)
        self.bound = address if listener else None
        listener = listener or _listen_everywhere()
        self.port: int = listener.getsockname()[1]
        self._store: TCPStore | None = None
        self.failure: str | None = None
        """Why there is no store behind the port, once that has failed."""
        self._ready = threading.Thread(target=self._serve, args=(listener.fileno(),), daemon=True)
        try:
            self._ready.start()
        except RuntimeError as error:
            listener.close()
            raise OSError(f"no thread for the store of the ranks can be started: {error}") from error
        listener.detach()

    def _serve(self, descriptor: int) -> None:
        try:
            self._store = TCPStore(
                self.bound or EVERYWHERE,
                self.port,
                is_master=True,
                wait_for_workers=False,
                multi_tenant=False,
                master_listen_fd=descriptor,
            )
        except RuntimeError as error:
            # The ranks do connect, since the port is bound, and would wait for an answer: the launcher has to act.
            self.failure = f"the store for the ranks on port {self.port} could not be started: {error}"

    def close(self) -> None:
        """Stop serving; dropping the last reference ends torch's server thread."""
        self._ready.join(1.0)  # it may be slow to begin, and is a daemon
        self._store = None


class RankStores:
    """The stores of this node's cycles, all at one address: the newest, one for the next cycle, and earlier ones that
    the ranks of other nodes may still use."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: list[RankStore] = []
        self._next: RankStore | None = None

    def prepare(self) -> None:
        """Make the next cycle's store ahead of time, while training is steady. Raises OSError."""
        self._next = self._next or RankStore(self._address)

    def open(self) -> tuple[str, int]:
        """A fresh store for a cycle: its address and port. Raises OSError."""
        if self._next is not None and self._next.failure:
            self._next = None
        store, self._next = self._next or RankStore(self._address), None
        self._open.append(store)
        return self._address, store.port

    def close_earlier(self) -> None:
        """All members are ready for the newest cycle: no rank uses an earlier store any more."""
        for store in self._open[:-1]:
            store.close()
        del self._open[:-1]

    @property
    def failure(self) -> str:
        """Why the newest store does not work; "" if it does, or if this node hosts none."""
        return (self._open[-1].failure or "") if self._open else ""

    def close(self) -> None:
        """Stop serving."""
        for store in [*self._open, *([self._next] if self._next else [])]:
            store.close()
        self._open, self._next = [], None


def _listen_at(address: str) -> socket.socket | None:
    """At this address only; None when it is a name, or none of this machine's addresses."""
    try:
        family, _, _, _, place = socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
    except socket.gaierror:
        return None
    listener = socket.socket(family)
    try:
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return listener


def _listen_everywhere() -> socket.socket:
    try:
        listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    except (OSError, ValueError):
        listener = socket.create_server(("", 0), backlog=BACKLOG)
    return listener
