"""Addresses: under which one others reach this node, and whether this process listens on a port.

Does not cover: address translation between nodes; give ``--local-addr`` there.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

LISTEN = "0A"  # proc(5), /proc/net/tcp: state of a listening socket


def own_address(meeting_point: str, *, is_host: bool) -> str:
    """Under which address the other nodes reach this one; `meeting_point` is the rendezvous host as they know it.

    Many machines resolve their own name to a loopback address (127.0.1.1 in /etc/hosts). The host, which is asked for
    the way to itself, then goes by the name that all others have reached it by.
    """
    address = address_towards(meeting_point)
    return meeting_point if is_host and _is_loopback(address) else address


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name
        return False


def address_towards(host: str) -> str:
    """The local address from which `host` is reached; more dependable than a host name nobody can resolve."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # UDP: sends nothing, only picks the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.getfqdn()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens."""

    host: str
    port: int

    def refuses(self) -> bool:
        """Whether the host answers that nobody listens there (no answer within a second is not that)."""
        try:
            with socket.create_connection((self.host.strip("[]"), self.port), timeout=1.0):
                return False
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def refused(host: Endpoint) -> str:
    """How we know that the store's host is gone where it says so itself."""
    return f"nobody listens at {host} any more"


def listens_on(port: int) -> bool:
    """Whether this very process has a listening TCP socket on `port`."""
    inodes = _own_sockets()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        for row in rows:
            if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port and row[9] in inodes:
                return True
    return False


def _own_sockets() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
