"""Where the core dump of a process that a signal ended is, or goes: core(5).

Always holds: no folder is looked into, since it may be on a hung file server; this tells where the kernel writes it.
Does not cover: whether it was written in full (a full disk, a missing right).
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from .kernel_file import content, link

DUMPING = frozenset(
    getattr(signal, f"SIG{name}")
    for name in ("QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "SEGV", "XCPU", "XFSZ", "SYS")
)
"""The signals that end a process with a core dump (signal(7))."""
_LIMIT = re.compile(r"^Max core file size\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Dumper:
    """What of a process decides where its core dump goes; noted while it lives."""

    pid: int
    program: str = ""
    """Its name, at most 15 bytes."""
    folder: str = ""
    """Its working directory."""
    limit: int | None = None
    """Bytes that a core file may have; None: no limit."""


def dumper(pid: int) -> Dumper:
    """Of a process that lives; what cannot be read is this process's own, which a rank inherits."""
    found = _LIMIT.search(content(f"/proc/{pid}/limits")) or _LIMIT.search(content("/proc/self/limits"))
    limit = int(found[1]) if found and found[1].isdigit() else None
    program = content(f"/proc/{pid}/comm").strip() or "python"
    return Dumper(pid, program, link(f"/proc/{pid}/cwd") or link("/proc/self/cwd"), limit)


def core_dump(who: Dumper, number: int) -> str:
    """Where it is or goes; '' for a signal that makes none, and where the limit on core files forbids one."""
    pattern = content("/proc/sys/kernel/core_pattern").strip("\n")
    with_pid = content("/proc/sys/kernel/core_uses_pid").strip() not in ("", "0")
    return place(who, number, pattern, with_pid) if pattern or with_pid else ""


def place(who: Dumper, number: int, pattern: str, with_pid: bool = False) -> str:
    """The same, from the kernel's settings. Pure."""
    if number not in DUMPING:
        return ""
    if pattern.startswith("|"):
        program = pattern[1:].split()[0] if pattern[1:].split() else "a program"
        how = f": coredumpctl info {who.pid}" if program.endswith("systemd-coredump") else ""
        return f"piped to {program}{how}"
    if who.limit == 0 or not pattern:
        return ""
    path = _expanded(pattern, who, number)
    if with_pid and "%p" not in pattern:
        path += f".{who.pid}"
    return os.path.join(who.folder or "the rank's working directory", path)


def _expanded(pattern: str, who: Dumper, number: int) -> str:
    """What is not known here (`%t`, the moment) stays as a star, as one would look for it."""
    host = os.uname().nodename
    values = {
        "%": "%",
        "p": who.pid,
        "s": number,
        "h": host,
        "e": who.program,
        "u": os.getuid(),
        "g": os.getgid(),
    }
    return re.sub(r"%(.)", lambda match: str(values.get(match[1], "*")), pattern).removesuffix("%")
