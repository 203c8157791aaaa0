"""A fresh store for the ranks of each cycle, on the node of rank 0.

Restarted ranks that share a store with the dead ones read the dead ranks' gloo addresses and hang (torch 2.13
with its default store sharing never recovers). The listening socket is bound here, so the port is fixed and
connectable before any rank starts, and cannot be taken. torch's TCPStore behind it runs in a process of its own
(:mod:`.store_host`): the launcher of a one-node job imports no torch, and to construct a TCPStore takes 5 s about once
in a hundred times. Ranks that connect earlier wait in the socket's queue.

What always holds: a store whose address is an address of this machine listens at that address only, so with a
loopback address it is out of other machines' reach. A host that dies before ranks could meet in its store is replaced;
one that dies later is a failure of the cycle, and the next cycle has another. A host that is stopped is continued.
Does not cover: authentication; torch's store has none. An address that is a name, or that is only translated to
this machine: then the store listens on all of its addresses.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from ..monitor.main import spawn_shielded
from .inbox import Inbox
from .store_host import CLOSE, LONGEST, OPEN
from .store_host import __file__ as HOST
from .warm.forked import Process, end

BACKLOG = 2048
STARTS = 3
"""Hosts in a row that may die before their first store has answered."""
ENDED = "the process that hosts the store for the ranks has ended"


Host = tuple[Process, socket.socket]
"""A process that runs :mod:`.store_host`, and the launcher's end of its control socket."""


class RankStore:
    """A port that the kernel chose, at which the ranks find their store. Raises OSError when no port can be had."""

    def __init__(self, address: str) -> None:
        self.listener = _listen(address)
        self.port: int = self.listener.getsockname()[1]
        self.failure = ""
        """Why there is no store behind the port, once that has failed."""


class RankStores:
    """The stores of this node's cycles, all at one address: the newest, one for the next cycle, and earlier ones that
    the ranks of other nodes may still use.

    Args:
        at_once: Start the host with the first store; else when a rank connects, so that a script that does not use
            torch.distributed does not pay for an import of torch.
        fork: Forks a host from a process that has torch; None where there is none.
    """

    def __init__(
        self, address: str, inbox: Inbox, *, at_once: bool, fork: Callable[[], Host | None] = lambda: None
    ) -> None:
        self._address, self._inbox, self._at_once, self._fork = address, inbox, at_once, fork
        self._newest: RankStore | None = None
        self._next: RankStore | None = None
        self._process: Process | None = None
        self._control: socket.socket | None = None
        self._starts = 0
        self._asked: list[RankStore] = []  # of the host, in this order, and not answered yet

    @property
    def pids(self) -> set[int]:
        """The host's pid, which a sweep must spare; empty where there is no host."""
        return {self._process.pid} if self._process else set()

    def open(self) -> tuple[str, int]:
        """A fresh store for a cycle: its address and port. Raises OSError."""
        if self._next is not None and self._next.failure:
            self._next = None
        self.hold()
        if self._newest is not None:
            self._newest.listener.close()  # here only: the host has one of its own
        store, is_prepared = self._next or RankStore(self._address), self._next is not None
        self._newest, self._next, self._starts = store, None, 0
        if not self._process and not self._at_once:
            self._inbox.watch(store.listener.fileno(), lambda: self._on_connection(store))
        elif not is_prepared:
            self._serve(store)
        return self._address, store.port

    def _on_connection(self, store: RankStore) -> None:
        self._inbox.ignore(store.listener.fileno())
        try:
            self._serve(store)
        except OSError as error:
            store.failure = f"the store for the ranks on port {store.port} could not be started: {error}"

    def hold(self) -> None:
        """Start no host from now on for a rank that connects: a sweep would end it."""
        if self._newest is not None and self._newest.listener.fileno() >= 0:
            self._inbox.ignore(self._newest.listener.fileno())

    def every_second(self, *, is_steady: bool) -> None:
        """Once a second. While training is steady, the next cycle's store is made. Raises OSError."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        if is_steady and self._next is None:
            self._next = RankStore(self._address)
            self._serve(self._next)

    def close_earlier(self) -> None:
        """All members are ready for the newest cycle: no rank uses an earlier store any more."""
        if self._control is not None:
            with suppress(OSError):
                self._control.send(CLOSE)

    @property
    def failure(self) -> str:
        """Why the newest store does not work; "" if it does, or if this node hosts none."""
        return self._newest.failure if self._newest else ""

    def close(self) -> None:
        """Stop serving."""
        self.hold()
        self._end()
        for store in (self._newest, self._next, *self._asked):
            if store is not None:
                store.listener.close()

    # -- the host ---------------------------------------------------------------------------------------------

    def _serve(self, store: RankStore) -> None:
        """Have the host serve this store. Raises OSError where none can be started."""
        if self._control is None:
            self._start()
        assert self._control is not None
        self._asked.append(store)
        with suppress(OSError):  # it has just ended, which `_on_answer` handles
            socket.send_fds(self._control, [OPEN], [store.listener.fileno()])

    def _start(self) -> None:
        self._process, self._control = self._fork() or start_cold()
        self._starts += 1
        self._inbox.watch(self._control.fileno(), self._on_answer)

    def _on_answer(self) -> None:
        assert self._control is not None
        try:
            answer = self._control.recv(LONGEST)
        except ConnectionResetError:
            return  # it ended with a message of ours unread; its own messages come now, then the end
        except OSError:
            answer = b""
        if not answer:
            self._replace()
        while answer:
            is_open, answer = answer.startswith(OPEN), answer[1:]
            if is_open:
                store, self._starts = self._asked.pop(0), 0
                store.listener.close()  # from now on a connection is refused when the host ends
                continue
            why, _, answer = answer.partition(b"\n")  # answers may arrive together
            port, _, text = why.decode(errors="replace").partition(" ")
            for known in (self._newest, self._next):
                if known is not None and known.port == int(port):
                    known.listener.close()
                    known.failure = f"the store for the ranks on port {port} could not be started: {text}"
            self._asked = [store for store in self._asked if store.port != int(port)]

    def _replace(self) -> None:
        """The host has ended."""
        self._end()
        unanswered, self._asked = self._asked, []
        for store in (self._newest, self._next):
            if store is None or store.failure:
                continue
            store.failure = f"{ENDED} (port {store.port})"
            if store in unanswered and self._starts < STARTS:
                store.failure = ""
                self._on_connection(store)

    def _end(self) -> None:
        if self._control is not None:
            self._inbox.ignore(self._control.fileno())
            self._control.close()
            self._control = None
        if self._process is not None:
            end(self._process)
            self._process = None


def start_cold() -> Host:
    """A host that imports torch itself, from where this launcher would. Raises OSError."""
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, spawn_shielded():
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", HOST, str(theirs.fileno()), *sys.path],
                env={**os.environ, **quiet},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    return process, ours


# -- its socket -------------------------------------------------------------------------------------------------


def _listen(address: str) -> socket.socket:
    """At this address only; at all of them when it is a name, or none of this machine's addresses."""
    with suppress(socket.gaierror):
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        family, _, _, _, place = found[0]
        try:
            return socket.create_server(place, family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    with suppress(OSError, ValueError):
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("", 0), backlog=BACKLOG)
