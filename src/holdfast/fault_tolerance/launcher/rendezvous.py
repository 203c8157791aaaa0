"""Where the job's store is, who hosts it, and the addresses of the nodes.

The launchers of a job of several nodes meet at torch's TCPStore; only then torch is imported. The launcher on whose
machine the endpoint is hosts it, as with torchrun (:func:`meet`).
Does not cover: address translation between nodes; give ``--local-addr`` there. A name that does not resolve is not
refused, as it may resolve later.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from holdfast.in_time import TooLate, UnderWay, within

if TYPE_CHECKING:
    from torch.distributed import Store
    from torch.distributed.elastic.rendezvous import RendezvousParameters

logger = logging.getLogger("holdfast.launcher")
LOG_AFTER = 2.0
"""Seconds after which a launcher logs that it still tries to connect."""
RESOLVED = 5.0
"""Seconds in which a name is resolved."""
CHECK = "check that node 0 is up, the address and the port"
DEFAULT_PORT = 29400
"""torch's default for the store of a c10d rendezvous."""
LOOPBACK = "127.0.0.1"
LISTEN = "0A"  # proc(5), /proc/net/tcp: state of a listening socket


class StoreUnreachable(Exception):
    """The job's store cannot be reached within torch's own limit."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens."""

    host: str
    port: int

    def refuses(self) -> bool:
        """Whether the host answers that no process listens there (no answer within a second is not that)."""
        try:
            with socket.create_connection((self.host.strip("[]"), self.port), timeout=1.0):
                return False
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parameters_of(
    given: SimpleNamespace, nodes: tuple[int, int], run_id: str, settings: Mapping[str, str]
) -> RendezvousParameters:
    """As torch has them, for torchrun's options; `settings` are those of --rdzv-conf."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    least, most = nodes
    return RendezvousParameters(
        given.rdzv_backend, given.rdzv_endpoint, run_id, least, most, local_addr=given.local_addr, **settings
    )


def parse_endpoint(text: str) -> Endpoint:
    """HOST, HOST:PORT or [IPv6]:PORT, as torch has it. Raises ValueError."""
    text = text.strip() or "localhost"
    is_bare = text[0] == "[" and text[-1] == "]"
    host, colon, port = (text, "", "") if is_bare else text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    if not (port.isdecimal() and len(port) <= 5 and int(port) < 2**16):
        raise ValueError(f"{text!r} is not allowed: the port has to be a number from 0 to 65535")
    if len(host) > 1 and host[0] == "[" and host[-1] == "]":
        host = host[1:-1]
    if not re.fullmatch(r"[\w.:-]+", host):
        raise ValueError(f"{text!r} is not allowed: give the name or the address of node 0, and a port")
    return Endpoint(host, int(port))


@dataclass(frozen=True, slots=True)
class Meeting:
    """A connection to the job's store, and this launcher in the job."""

    store: Store
    connect: Callable[[], Store]  # makes another connection
    endpoint: Endpoint  # where the store listens, also where port 0 was given
    name: str  # that no other launcher of the job has or had
    address: str  # at which the other nodes reach this one
    is_host: bool  # of the store


def meet(parameters: RendezvousParameters, node: str) -> Meeting:
    """Connect to the job's store, which this process hosts from now on where it is to.

    A signal handler may raise meanwhile.

    Raises:
        StoreUnreachable: Torch's time limit has passed, or the connection broke.
    """
    from torch.distributed import PrefixStore
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend

    where, prefix = parse_endpoint(parameters.endpoint), f"holdfast/{parameters.run_id}"

    def call_all() -> Meeting:
        bare = create_backend(parameters)[1]
        store, port = PrefixStore(prefix, bare), where.port or getattr(bare, "port", 0)
        is_host = listens_on(port)
        return Meeting(
            store,
            lambda: PrefixStore(prefix, bare.clone()),  # type: ignore[attr-defined]  # torch's stubs
            Endpoint(LOOPBACK if is_host else where.host, port),
            register(store, node),
            parameters.local_addr or own_address(where.host, is_host=is_host),
            is_host,
        )

    def log_late() -> None:
        text = "node %s tries to reach the rendezvous store at %s (%s)"
        logger.warning(text, node, where, _to_check(where.host))

    timer = threading.Timer(LOG_AFTER, log_late)
    timer.daemon = True
    timer.start()
    try:
        call = UnderWay(call_all)  # each of these may block for as long as the host is stopped
        while True:
            with suppress(TooLate):
                return call.answer(0.1)  # signal handlers run between two of these
    except (RendezvousError, RuntimeError) as error:
        raise StoreUnreachable(
            f"the rendezvous store at {parameters.endpoint} cannot be reached: {_to_check(where.host)}"
        ) from error
    finally:
        timer.cancel()


def _to_check(host: str) -> str:
    """Why a host may not be reached."""
    try:
        within(RESOLVED, lambda: socket.getaddrinfo(host, None))
    except (socket.gaierror, UnicodeError) as error:
        return f"the name {host} cannot be resolved: {error}"
    except (OSError, TooLate):
        pass
    return CHECK


def register(store: Store, name: str) -> str:
    """A name for this launcher that no other launcher of the job has or had: `name`, or with a number where that is
    taken. A launcher that is started again in its container may have the pid that it had before."""
    token = os.urandom(8).hex()
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{name}-{number}"
        if store.compare_set(f"name/{candidate}", "", token).decode() == token:
            return candidate
    raise AssertionError


def own_address(meeting_point: str, *, is_host: bool) -> str:
    """The address at which the other nodes reach this one; `meeting_point` is the store's host as they have it.

    Many machines resolve their own name to a loopback address (127.0.1.1 in /etc/hosts). The host, which is asked for
    the way to itself, then takes the name by which all others have reached it.
    """
    address = _address_towards(meeting_point)
    return meeting_point if is_host and _is_loopback(address) else address


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name
        return False


def _address_towards(host: str) -> str:
    """The local address from which `host` is reached; more dependable than a host name that may not resolve."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # UDP: sends nothing, only picks the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.getfqdn()


def listens_on(port: int) -> bool:
    """Whether this very process has a listening TCP socket on `port`."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{name}").removeprefix("socket:"))
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with suppress(OSError), open(table) as file:
            for row in (line.split() for line in file.readlines()[1:]):
                is_here = int(row[1].rpartition(":")[2], 16) == port
                if row[3] == LISTEN and is_here and f"[{row[9]}]" in inodes:
                    return True
    return False
