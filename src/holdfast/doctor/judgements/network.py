"""Ports, names and interfaces, as a job on this node uses them. Pure.

Does not cover: whether other nodes reach this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from ..finding import Finding, note, ok, problem
from ..quantity import listed

DEFAULT_PORTS = (29400, 29500)
"""Where torch's c10d rendezvous and its MASTER_PORT are when nobody says otherwise."""
FEW_PORTS = 1000
SEVERAL = (
    "for a job of several nodes give --rdzv-endpoint an address that they reach, and each node --local-addr"
)


@dataclass(frozen=True, slots=True)
class Name:
    """What a host name resolves to."""

    name: str
    addresses: Sequence[str] = ()
    """In the order in which they are tried."""
    foreign: Sequence[str] = ()
    """Those among them that this machine cannot listen on."""
    error: str = ""
    """Why it resolves to nothing."""


def loopback(error: str) -> Finding:
    """Whether a port of 127.0.0.1 could be listened on and connected to."""
    check = "loopback port"
    if error:
        return problem(
            check,
            f"a port of 127.0.0.1 cannot be used: {error}. The ranks of one node meet there",
            "bring the interface up (ip link set lo up), and let the firewall pass what stays on the machine",
        )
    return ok(check, "127.0.0.1 can be listened on and connected to")


def ports(first: int, last: int, reserved: Sequence[tuple[int, int]], listening: Sequence[int]) -> Finding:
    """The range from which the kernel picks ports, what is kept out of it, and who listens on torch's defaults."""
    check = "ports"
    told = f"free ports are picked from {first} to {last}"
    taken = [str(port) for port in DEFAULT_PORTS if port in listening]
    inside = [
        str(port)
        for port in DEFAULT_PORTS
        if first <= port <= last and not any(low <= port <= high for low, high in reserved)
    ]
    if taken:
        return note(
            check,
            f"{told}; somebody listens on {listed(taken)}, a default of torch's rendezvous",
            "give a job of several nodes another port (--rdzv-endpoint HOST:PORT); one node needs none",
        )
    if last - first + 1 < FEW_PORTS:
        return note(
            check, f"{told}: few", "widen the range (sysctl net.ipv4.ip_local_port_range='32768 60999')"
        )
    if inside:
        return note(
            check,
            f"{told}; {listed(inside)}, a default of torch's rendezvous, may so be taken by any connection",
            f"sysctl net.ipv4.ip_local_reserved_ports={','.join(inside)}, or choose a port below {first}",
        )
    return ok(check, told)


def localhost(found: Name) -> Finding:
    """`localhost`, by which the ranks of one node find their store."""
    check = "localhost"
    mend = "write '127.0.0.1 localhost' into /etc/hosts"
    if found.error or not found.addresses:
        return problem(check, f"does not resolve: {found.error or 'no address'}", mend)
    told = f"resolves to {listed(found.addresses)}"
    astray = [address for address in found.addresses if not _is_loopback(address)]
    if astray:
        return problem(check, f"{told}: {listed(astray)} is not this machine's loopback", mend)
    if len(found.foreign) == len(found.addresses):
        return problem(check, f"{told}, where this machine cannot listen", mend)
    if found.foreign:
        return note(
            check,
            f"{told}, but {listed(found.foreign)} cannot be listened on: each connection first tries in vain",
            "take that line out of /etc/hosts, or switch IPv6 on (sysctl net.ipv6.conf.lo.disable_ipv6=0)",
        )
    return ok(check, told)


def host_name(found: Name) -> Finding:
    """This machine's own name, by which other nodes may be told to reach it."""
    check = "host name"
    if found.error or not found.addresses:
        return note(
            check,
            f"{found.name!r} does not resolve ({found.error or 'no address'}): gloo falls back to the loopback",
            f"fine on one node; {SEVERAL}",
        )
    told = f"{found.name!r} resolves to {listed(found.addresses)}"
    if found.foreign:
        return note(
            check,
            f"{told}, and {listed(found.foreign)} is no address of this machine",
            f"mend /etc/hosts or the DNS; until then {SEVERAL}",
        )
    if all(map(_is_loopback, found.addresses)):
        return note(
            check,
            f"{told}, a loopback address: other nodes would reach themselves",
            f"fine on one node; {SEVERAL}",
        )
    return ok(check, told)


def ipv6(error: str) -> Finding:
    """Whether a port of ::1 can be listened on; nothing needs it."""
    return ok("IPv6", f"not here ({error}), and not needed" if error else "::1 can be listened on")


def interfaces(wanted: Mapping[str, str], present: Sequence[str]) -> list[Finding]:
    """Variables that name interfaces, such as GLOO_SOCKET_IFNAME, and the interfaces that there are."""
    found = []
    for variable, value in wanted.items():
        missing = [name for name in value.split(",") if not _matches(name.strip(), present, variable)]
        told = f"{variable}={value}"
        if missing:
            found.append(
                problem(
                    "interfaces",
                    f"{told}: there is no {listed(missing)} here, but {listed(present)}",
                    f"unset {variable}, or name one of these",
                )
            )
        else:
            found.append(ok("interfaces", told))
    return found


def _matches(name: str, present: Sequence[str], variable: str) -> bool:
    """gloo wants names; NCCL takes beginnings of names, `=` for whole ones and `^` for those to leave out."""
    if variable.startswith("NCCL"):
        if name.startswith("^"):
            return True
        if not name.startswith("="):
            return any(each.startswith(name) for each in present)
    return name.removeprefix("=") in present


def _is_loopback(address: str) -> bool:
    return ip_address(address.partition("%")[0]).is_loopback
