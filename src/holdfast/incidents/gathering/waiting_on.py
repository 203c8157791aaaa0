"""On what a process waits in its system call: the file behind a descriptor, a connection's far end, a lock's owner.

Always holds: links are read and never followed. Reading ``/proc/<pid>/syscall`` may wait for a process that becomes
another program just now, so it belongs in a thread.
Does not cover: what `poll` and its like wait for (the list is in the process's memory), and which lock a futex is.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Sequence

from .kernel_file import content, link, names
from .system_calls import FOR_A_CHILD, LOCKING, Call, call

_SIGNED_32 = 1 << 31
_LISTS = ("tcp", "tcp6")
_MOST_ASKED = 64
_MOST_OPEN = 256


def system_call(pid: int, family: Sequence[int] = ()) -> str:
    """What the main thread waits in, such as `read /data/part-7` or `wait4 pid 71`; '' while it computes.

    `family` are processes one of which may have the other end of a pipe: its children.
    """
    found = call(content(f"/proc/{pid}/syscall"), os.uname().machine)
    if found is None:
        return ""
    return " ".join(part for part in (found.name, _object(pid, found, family), _holder(pid, found)) if part)


def kernel_stack(pid: int) -> tuple[str, ...]:
    """The functions of the main thread's kernel stack, the innermost first; empty unless the kernel shows it (root)."""
    found = re.findall(r"^\[<[^>]*>\] ([\w.]+)", content(f"/proc/{pid}/stack"), re.MULTILINE)
    return tuple(found[:32])


def _object(pid: int, waits: Call, family: Sequence[int]) -> str:
    if waits.name in FOR_A_CHILD and len(waits.arguments) > FOR_A_CHILD[waits.name]:
        child = _number(waits.arguments[FOR_A_CHILD[waits.name]])
        return f"pid {child}" if child > 0 else ""
    if waits.descriptor is None or waits.descriptor >= _SIGNED_32:
        return ""
    target = link(f"/proc/{pid}/fd/{waits.descriptor}")
    far_end = _far_end(pid, target) or _shared_with(target, family)
    return f"{target} ({far_end})" if far_end else target


def _number(argument: int) -> int:
    """A 32-bit argument with its sign."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low >= _SIGNED_32 else low


def _far_end(pid: int, target: str) -> str:
    """Of a TCP connection: `to 10.0.0.7:29500`; '' where it is none."""
    if not target.startswith("socket:["):
        return ""
    inode = target[len("socket:[") : -1]
    for name in _LISTS:
        for line in content(f"/proc/{pid}/net/{name}").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[9] == inode:
                return f"to {address(fields[2])}"
    return ""


def _shared_with(target: str, family: Sequence[int]) -> str:
    """Of a pipe: `shared with pid 71`, the first of the family that has it open; '' where none has."""
    for pid in family[:_MOST_ASKED] if target.startswith("pipe:[") else ():
        if any(link(f"/proc/{pid}/fd/{each}") == target for each in names(f"/proc/{pid}/fd")[:_MOST_OPEN]):
            return f"shared with pid {pid}"
    return ""


def address(text: str) -> str:
    """An address of ``/proc/net/tcp`` (proc(5)), as `10.0.0.7:29500`."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"


def _holder(pid: int, waits: Call) -> str:
    found = holder(content("/proc/locks"), pid) if waits.name in LOCKING else None
    return f"(held by pid {found})" if found else ""


def holder(locks: str, pid: int) -> int | None:
    """Who has the file lock that this process waits for, from ``/proc/locks`` (proc(5)); None where nobody is named."""
    owners: dict[str, int] = {}
    for line in locks.splitlines():
        fields = line.split()
        waits = "->" in fields
        fields = [field for field in fields if field != "->"]
        if len(fields) < 5 or not fields[4].lstrip("-").isdigit():
            continue
        if not waits:
            owners[fields[0]] = int(fields[4])
        elif int(fields[4]) == pid:
            return owners.get(fields[0])
    return None
