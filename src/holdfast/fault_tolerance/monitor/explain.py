"""Who is where since when: the plain description of a rank that goes into a verdict.

Taken from the boards and ``/proc`` only, so it disturbs nobody.
Does not cover: stacks, and why a rank is where it is.
"""

from __future__ import annotations

from typing import Any

from ..board import Snapshot
from ..processes import proc
from .gaps import SECOND

STATES = {"R": "running", "S": "sleeping", "D": "disk wait", "T": "stopped", "t": "traced", "Z": "zombie"}


def describe(board: Snapshot, now_ns: int) -> dict[str, Any]:
    """Rank, pid, open sections from the outside in, seconds there, step, process state and wait channel."""
    assert board.identity is not None
    who = board.identity
    found = proc.stat(who.pid)
    since = board.open_sections[-1].since_ns if board.open_sections else board.last_activity_ns
    return {
        "rank": who.rank,
        "local_rank": who.local_rank,
        "pid": who.pid,
        "cycle": who.cycle,
        "where": " > ".join(section.name for section in board.open_sections),
        "for": round((now_ns - (since or who.started_ns)) / SECOND, 3),
        "silent": round((now_ns - (board.last_activity_ns or who.started_ns)) / SECOND, 3),
        "step": board.step,
        "heartbeats": board.heartbeat_count,
        "connected": board.connected,
        "finished": board.finished,
        "state": found.state if found else "gone",
        "wait_channel": proc.wait_channel(who.pid),
    }


def describe_safely(board: Snapshot, now_ns: int) -> dict[str, Any]:
    """The same; what cannot be described is said to be unknown. A description must not decide who is ended."""
    try:
        return describe(board, now_ns)
    except Exception as error:
        assert board.identity is not None
        who = board.identity
        return {
            **{"rank": who.rank, "local_rank": who.local_rank, "pid": who.pid, "cycle": who.cycle},
            **{"where": "", "for": 0.0, "silent": 0.0, "step": None, "heartbeats": board.heartbeat_count},
            **{"connected": board.connected, "finished": board.finished, "wait_channel": ""},
            "state": f"unknown: {error!r}",
        }
