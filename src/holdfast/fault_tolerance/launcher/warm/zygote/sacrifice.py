"""Whom the kernel ends first where memory runs out: zygote and standbys, of which nobody is in want, before any rank.

Source: proc(5), /proc/PID/oom_score_adj; a process may lower its own again to what it was. Does not cover: limits of
cgroups that end all of their processes at once.
"""

from __future__ import annotations

FILE = "/proc/self/oom_score_adj"
FIRST = 1000


def offer() -> int:
    """From now on this process goes first; returns what was in force before."""
    with open(FILE) as file:
        before = int(file.read())
    withdraw(FIRST)
    return before


def withdraw(before: int) -> None:
    """As it was before. OSError where the kernel does not allow it."""
    with open(FILE, "w") as file:
        file.write(str(before))
