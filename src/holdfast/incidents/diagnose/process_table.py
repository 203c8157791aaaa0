"""All processes of this node at one moment, with their command lines and environments, by one deadline.

Both are behind the lock of a process's memory map, so they are read in threads: a process that does not answer costs a
thread, and is treated as one with an empty environment.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ...fault_tolerance.processes import proc
from ...visible import escaped
from ..capture.procfs import content

STALLED = 0.02
"""Seconds without an answer after which as many threads again read the rest."""

MOST_THREADS = 256
LONGEST_COMMAND = 80

RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
Environment = dict[str, str]


class Processes:
    """All processes of this node at one moment. Nothing is read after `until` (monotonic seconds)."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.stats = proc.all_stats()
        self._environments: dict[int, Environment] = {}

    def line(self, pid: int) -> list[int]:
        """The process, its parent, and so on."""
        found: list[int] = []
        while pid in self.stats and pid not in found:
            found.append(pid)
            pid = self.stats[pid].ppid
        return found

    def below(self, pid: int) -> list[int]:
        """What runs below it, without this command."""
        return sorted(proc.descendants({pid}, self.stats) - set(self.line(os.getpid())))

    def environments(self, pids: Iterable[int]) -> dict[int, Environment]:
        """What these processes were started with; empty where that cannot be read in time."""
        wanted = list(pids)
        texts = _read([pid for pid in wanted if pid not in self._environments], "environ", self.until)
        for pid in wanted:
            pairs = (entry.partition("=") for entry in texts.get(pid, "").split("\0"))
            self._environments.setdefault(pid, {name: value for name, equals, value in pairs if equals})
        return {pid: self._environments[pid] for pid in wanted}

    def ranks(self, pids: Iterable[int]) -> dict[int, Environment]:
        """Those of these processes that have the number of a rank in their environment."""
        found = self.environments(pids)
        return {pid: each for pid, each in found.items() if number(each, RANK_NAMES) is not None}

    def command(self, pid: int) -> str:
        """Its command line, on one line and shortened; its name where it cannot be read."""
        words = _read([pid], "cmdline", self.until).get(pid, "").rstrip("\0").split("\0")
        text = escaped(" ".join(" ".join(words).split()))
        text = text if len(text) <= LONGEST_COMMAND else f"{text[: LONGEST_COMMAND - 2]} …"
        return text or (self.stats[pid].name if pid in self.stats else "unknown")


def _read(pids: list[int], name: str, until: float) -> dict[int, str]:
    """The file of this name of each process, as far as it can be read until then."""
    rest, found = deque(pids), dict[int, str]()

    def read_the_rest() -> None:
        with suppress(IndexError):
            while time.monotonic() < until:
                pid = rest.popleft()
                found[pid] = content(f"/proc/{pid}/{name}")

    threads, count, since = 0, -1, 0.0
    while len(found) < len(pids) and (now := time.monotonic()) < until:
        if len(found) > count:
            count, since = len(found), now
        if rest and (not threads or now - since > STALLED) and threads < MOST_THREADS:
            since = now
            for _ in range(max(threads, 1)):
                with suppress(RuntimeError):  # no thread to be had
                    threading.Thread(target=read_the_rest, name="holdfast-read", daemon=True).start()
                threads += 1
        time.sleep(0.001)
    return dict(found)


def number(environment: Mapping[str, str], of: Iterable[str]) -> int | None:
    """The first of these variables that is a number."""
    return next((int(text) for name in of if (text := environment.get(name, "")).isdecimal()), None)


def user_of(pid: int) -> int | None:
    """Whose process it is. (The folder's own owner is root where a program has changed its user.)"""
    words = proc.table(f"/proc/{pid}/status").get("Uid", "").split()
    return int(words[1]) if len(words) > 1 else None
