"""Whether the kernel ended a process for want of memory: control groups and the kernel's log, compared with before.

Always holds: nothing waits and nothing raises. The kernel's log names a process and is proof; a control group counts
only how many were ended in it, and is said to be no more than that. Pids in the log are those of the machine, so it
is believed only outside of containers.
Sources: cgroup-v2.rst (memory.events), cgroup-v1/memory.rst (memory.oom_control: oom_kill), and kernel_log.
Does not cover: killers that are programs (earlyoom, systemd-oomd, a batch system); they leave a plain SIGKILL.
"""

from __future__ import annotations

import re

from ...doctor.looks import cgroups
from .kernel_file import content, link
from .kernel_log import KernelLog, killed_for_memory

FILES = ("memory.events", "memory.oom_control")
_INITIAL_NAMESPACE = "pid:[4026531836]"
"""The pid namespace that the machine begins with (include/linux/proc_ns.h)."""
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """From the beginning of a cycle to its end. `close` gives the descriptor of the kernel's log back."""

    def __init__(self, own: str = "/proc/self", log: KernelLog | None = None) -> None:
        """`own` is the folder in ``/proc`` of a process that is in the ranks' control group."""
        self.log = log or KernelLog()
        self._counter = _counter(own)
        self._before = _count(self._counter)
        self._same_pids = link("/proc/self/ns/pid") == _INITIAL_NAMESPACE

    def killed(self, pid: int) -> str:
        """How we know that this process was ended for want of memory; '' where we do not. To be asked of one that a
        SIGKILL ended: where the log names nobody, what its control group counts is taken for it."""
        named = killed_for_memory(self.log.news()) if self._same_pids else {}
        if named:
            return f"the kernel's log says: {named[pid]}" if pid in named else ""
        return self.counted()

    def counted(self) -> str:
        """What the control group counts since the beginning, in words; '' where it counts nothing new."""
        before, now = self._before, _count(self._counter)
        if before is None or now is None or now <= before:
            return ""
        what = "1 process" if now - before == 1 else f"{now - before} processes"
        return f"the control group's {self._counter} counts {what} ended for want of memory since the cycle began"

    def notes(self) -> tuple[str, ...]:
        """Facts for the node: who was ended, and what could not be looked at."""
        said = tuple(
            f"the kernel's log says: {words}" for words in killed_for_memory(self.log.news()).values()
        )
        return (*said, counted) if (counted := self.counted()) else said

    def close(self) -> None:
        """Safe to call twice."""
        self.log.close()


def _counter(own: str) -> str:
    """The file that counts, of the innermost group that has one: those above count the processes of other jobs too."""
    try:
        folders = list(cgroups.levels("memory", own))
    except (OSError, ValueError):
        return ""
    paths = (f"{folder}/{name}" for folder in folders for name in FILES)
    return next((path for path in paths if _count(path) is not None), "")


def _count(path: str) -> int | None:
    """None where nothing is counted."""
    found = _COUNT.search(content(path)) if path else None
    return int(found[1]) if found else None
