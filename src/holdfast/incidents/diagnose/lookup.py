"""One process of this node, as far as this user may see it: whose it is, what it runs, its environment.

What always holds: no call waits for a process for longer than `ANSWER` (command lines and environments are behind the
lock of a process's memory map), and nothing is changed or signalled.

Does not cover: processes of other pid namespaces, and an environment that a program has changed since its start.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from ...fault_tolerance.processes import proc
from ...in_time import TooLate, within
from ...visible import escaped
from .errors import NotDiagnosed

ANSWER = 0.3
"""Seconds."""
KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the flags in proc(5)'s stat."""
LONGEST = 80


@dataclass(frozen=True, slots=True)
class Looked:
    """A process that is there."""

    pid: int
    start_time: int
    state: str
    parent: int
    user: int
    command: str
    """For a person: its command line, shortened."""


def look(pid: int) -> Looked:
    """The process with this number, or the one that has a thread with it. Raises `NotDiagnosed` in a person's words."""
    owner = _thread_group(pid)
    found = proc.stat(owner) if owner else None
    if found is None:
        hidden = "" if os.geteuid() == 0 else ", or it is hidden from this user"
        raise NotDiagnosed(f"there is no process {pid} on node {os.uname().nodename}{hidden}")
    if _flags(owner) & KERNEL_THREAD:
        raise NotDiagnosed(f"process {pid} ({found.name}) is a thread of the kernel, and no program")
    if owner == os.getpid():
        raise NotDiagnosed(f"process {pid} is this command itself. Name a process of the job")
    if found.state in "ZX" and found.threads <= 1:
        parent = proc.stat(found.ppid)
        of = f"process {found.ppid} ({parent.name})" if parent else f"process {found.ppid}"
        raise NotDiagnosed(
            f"process {pid} ({found.name}) has ended, and {of} has not collected it: nothing of it is left to look at. "
            f"Its job may be found by that one: holdfast diagnose {found.ppid}"
        )
    user = _status(owner, b"Uid:", 2)
    if user is None:
        raise NotDiagnosed(f"process {pid} has just ended")
    return Looked(owner, found.start_time, found.state, found.ppid, user, command(owner) or found.name)


def check_permitted(found: Looked) -> None:
    """Raises `NotDiagnosed` where the process is another user's."""
    if os.geteuid() not in (0, found.user):
        owner = user_name(found.user)
        raise NotDiagnosed(
            f"process {found.pid} ({found.command}) belongs to user {owner}, and this is {user_name(os.geteuid())}: "
            "stacks and boards of a process are for its own user and for root. "
            f"Run this as {f'{owner} or as root' if found.user else 'root'}"
        )


def user_name(number: int) -> str:
    """The user's name, or the number where it has none here."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def command(pid: int) -> str:
    """Its command line, on one line and shortened; empty where it cannot be read."""
    words = _read(pid, "cmdline").rstrip(b"\0").split(b"\0")
    text = escaped(" ".join(b" ".join(words).decode(errors="replace").split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"


def environment(pid: int) -> dict[str, str]:
    """What it was started with; empty where that cannot be read."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in _read(pid, "environ").split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def open_files(pid: int) -> list[str]:
    """Where its descriptors lead, as the kernel has it; empty where that cannot be read. Waits for nobody."""
    found = []
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                found.append(os.readlink(f"{folder}/{name}"))
            except OSError:
                continue  # closed meanwhile
    except OSError:
        return []
    return found


def _read(pid: int, name: str) -> bytes:
    def content() -> bytes:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()

    try:
        return within(ANSWER, content)
    except (OSError, TooLate, RuntimeError):
        return b""


def _thread_group(pid: int) -> int:
    """The process that this number belongs to; 0 where there is none."""
    return (_status(pid, b"Tgid:", 1) or 0) if 0 < pid < 1 << 31 else 0


def _status(pid: int, name: bytes, column: int) -> int | None:
    """A number of ``/proc/<pid>/status``. (The folder's own owner is root where a program has changed its user.)"""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[column]) for line in file if line.startswith(name)), None)
    except (OSError, ValueError):
        return None


def _flags(pid: int) -> int:
    line = proc.one_read(f"/proc/{pid}/stat")
    return int(line[line.rindex(b")") + 2 :].split()[6]) if b")" in line else 0
