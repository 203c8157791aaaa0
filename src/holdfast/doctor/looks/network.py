"""Ports and names, tried out on this machine alone: nothing is sent but questions to the resolver."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from ...in_time import TooLate, within
from ..judgements.network import Name
from . import text_file

ANSWER = 1.0
"""Seconds that a resolver may take."""
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
LISTEN = "0A"


def loopback(address: str = "127.0.0.1") -> str:
    """Why a port of this address cannot be listened on and connected to; empty when it can."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as listener, socket.socket(family) as caller:
            listener.bind((address, 0))
            listener.listen(1)
            caller.settimeout(ANSWER)
            caller.connect(listener.getsockname())
    except OSError as error:
        return error.strerror or str(error) or "no answer"
    return ""


def port_range() -> tuple[int, int]:
    """From where to where the kernel picks free ports. IPv6 has the same."""
    first, last = (text_file.line("/proc/sys/net/ipv4/ip_local_port_range") or "32768 60999").split()
    return int(first), int(last)


def reserved_ports() -> list[tuple[int, int]]:
    """Ranges that it leaves alone."""
    text = text_file.line("/proc/sys/net/ipv4/ip_local_reserved_ports") or ""
    found = [each.partition("-") for each in text.split(",") if each]
    return [(int(first), int(last or first)) for first, _, last in found]


def listening_ports() -> list[int]:
    """Ports of TCP on which somebody listens in this network namespace."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, encoding="ascii") as file:
                rows = [each.split() for each in file][1:]
        except OSError:
            continue
        found |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTEN}
    return sorted(found)


def own_name() -> Name:
    """This machine's host name."""
    return name(socket.gethostname())


def name(host: str) -> Name:
    """What a name resolves to, and where of that this machine cannot listen."""
    try:
        answer = _resolved(host)
    except TooLate:
        return Name(host, error=f"no answer within {ANSWER:g} s")
    except (OSError, UnicodeError) as error:
        return Name(host, error=getattr(error, "strerror", None) or str(error))
    addresses = list(dict.fromkeys(str(each[4][0]) for each in answer))
    return Name(host, addresses, [each for each in addresses if not _is_own(each)])


def _resolved(host: str) -> list[Any]:
    try:
        return within(ANSWER, lambda: socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
    except RuntimeError:  # no thread to be had: then without a ceiling of its own
        return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)


def wanted_interfaces(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that name interfaces and are set."""
    return {name: environment[name] for name in VARIABLES if environment.get(name)}


def present_interfaces() -> list[str]:
    """The network interfaces of this machine."""
    return [name for _, name in socket.if_nameindex()]


def _is_own(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
