"""The processes of one job, wherever they went: found by a mark in their environment, and ended.

What always holds: only processes that carry the mark are touched. Does not cover: one that has replaced its whole
environment.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "HOLDFAST_CORPUS"
POLL, CEILING = 0.02, 10.0


class Marked:
    """Everything whose environment has this mark."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    def processes(self) -> Iterator[int]:
        """Those that live."""
        mark = f"{MARK}={self.mark}".encode()
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    yield int(name)

    def end(self) -> None:
        """Kill all that lives, and what that has started meanwhile."""
        deadline = time.monotonic() + CEILING
        while (living := list(self.processes())) and time.monotonic() < deadline:
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL)


def below(pid: int, ancestor: int) -> bool:
    """Whether it is this process or a descendant: ranks have sessions of their own."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def command_of(pid: int) -> str:
    """Its command line; "" when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")[:200]
    return ""
