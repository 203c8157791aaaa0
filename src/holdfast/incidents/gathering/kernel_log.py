"""What the kernel has written to its log since the cycle began: who was ended for want of memory, which GPU failed.

Always holds: nothing waits; at most `MOST` records are read at a time, and of those only the ones that matter here
are kept, at most `KEPT`. Where this user may not read the log, `refused` says so.
Does not cover: what was written before; logs of containers that have none of their own.
"""

from __future__ import annotations

import contextlib
import os
import re

DEVICE = "/dev/kmsg"
MOST = 2000
KEPT = 200
_RECORD = 8192
_MATTERS = re.compile(
    r"Killed process|oom-kill:|NVRM: Xid|Uncorrect|Machine Check|Hardware Error|blocked for more than"
)
_KILLED = re.compile(r"(Memory cgroup out of memory|Out of memory)?[^\n]*?Killed process (\d+) \(([^)]*)\)")


class KernelLog:
    """The log from now on. `close` gives its descriptor back."""

    def __init__(self, device: str = DEVICE) -> None:
        self.refused = ""
        """Why it cannot be read; empty where it can."""
        self._kept: list[str] = []
        self._handle = -1
        try:
            self._handle = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._handle, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.refused = f"the kernel's log cannot be read ({device}: {error.strerror or error})"

    def news(self) -> tuple[str, ...]:
        """All that matters here and was written since it was opened, the oldest first."""
        for _ in range(MOST if self._handle >= 0 else 0):
            try:
                record = os.read(self._handle, _RECORD)
            except BrokenPipeError:  # records that we had not read are overwritten; the next one is there
                continue
            except OSError:  # nothing more, mostly
                break
            if not record:
                break
            self._keep(record.decode(errors="replace"))
        return tuple(self._kept)

    def _keep(self, record: str) -> None:
        """A record is `level,number,time,flags;text`, and lines of fields after it (Documentation/ABI, dev-kmsg)."""
        text = record.partition(";")[2].partition("\n")[0]
        if _MATTERS.search(text) and len(self._kept) < KEPT:
            self._kept.append(text)

    def close(self) -> None:
        """Safe to call twice."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with contextlib.suppress(OSError):
                os.close(handle)


def killed_for_memory(lines: tuple[str, ...]) -> dict[int, str]:
    """Pid -> the kernel's own words, for each process that it ended for want of memory. Pure.

    The kernel writes `Out of memory: Killed process 71 (python) ...`, or `Memory cgroup out of memory: ...`.
    """
    found: dict[int, str] = {}
    for line in lines:
        for match in _KILLED.finditer(line):
            words = f"{match[1]}: " if match[1] else ""
            found.setdefault(int(match[2]), f"{words}Killed process {match[2]} ({match[3]})")
    return found


def hardware(lines: tuple[str, ...]) -> tuple[str, ...]:
    """What the log says of failing hardware and tasks that hang in the kernel. Pure."""
    return tuple(
        line for line in lines if _MATTERS.search(line) and not re.search("Killed process|oom-kill:", line)
    )
