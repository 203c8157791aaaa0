"""Whom the kernel ends first where memory runs out: zygote and standbys, of which nobody is in want, before any rank.

Source: proc(5), /proc/PID/oom_score_adj; a process may lower its own again to what it was. Does not cover: limits of
cgroups that end all of their processes at once.
"""

from __future__ import annotations

FILE = "/proc/self/oom_score_adj"
FIRST = 1000


def offer() -> int | None:
    """This process goes first from now on. Returns what was in force before; None: the kernel does not allow it."""
    try:
        with open(FILE) as file:
            before = int(file.read())
        withdraw(FIRST)
    except (OSError, ValueError):
        return None
    return before


def withdraw(before: int | None) -> None:
    """As it was before. OSError where the kernel does not allow it."""
    if before is None:
        return
    with open(FILE, "w") as file:
        file.write(str(before))
