"""One fresh store for the ranks of each cycle, hosted by the launcher of node rank 0.

Restarted ranks that share a store with the dead ones read the dead ranks' gloo addresses and hang (torch 2.13
with its default store sharing never recovers). The listening socket is bound here, so the port is known and
connectable before any rank starts; the server behind it is made in a thread, because constructing a TCPStore
takes 5 s about once in a hundred times.
Does not cover: authentication; torch's store has none. A job of one node listens on loopback only.
"""

from __future__ import annotations

import logging
import socket
import threading

from torch.distributed import TCPStore

logger = logging.getLogger("holdfast.launcher")
BACKLOG = 2048


class RankStore:
    """A TCPStore server on a port that the kernel chose; `loopback` keeps other machines out."""

    def __init__(self, address: str, *, loopback: bool) -> None:
        self.address = address
        listener = _listen_loopback() if loopback else _listen_everywhere()
        self.port: int = listener.getsockname()[1]
        self._store: TCPStore | None = None
        self._ready = threading.Thread(target=self._serve, args=(listener.detach(),), daemon=True)
        self._ready.start()

    def _serve(self, descriptor: int) -> None:
        try:
            # torch's own client side of this object connects by loopback whatever address the ranks use.
            self._store = TCPStore(
                "127.0.0.1",
                self.port,
                is_master=True,
                wait_for_workers=False,
                multi_tenant=False,
                master_listen_fd=descriptor,
            )
        except RuntimeError as error:  # the ranks will fail to connect and say so; this is the reason
            logger.error("the store for the ranks on port %d could not be started: %s", self.port, error)

    def close(self) -> None:
        """Stop serving; dropping the last reference ends torch's server thread."""
        self._ready.join()
        self._store = None


def _listen_loopback() -> socket.socket:
    listener = socket.socket(socket.AF_INET)
    listener.bind(("127.0.0.1", 0))
    listener.listen(BACKLOG)
    return listener


def _listen_everywhere() -> socket.socket:
    try:
        listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    except (OSError, ValueError):
        listener = socket.create_server(("", 0), backlog=BACKLOG)
    return listener
