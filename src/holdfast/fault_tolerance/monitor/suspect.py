"""Whom a passed limit is held against: the rank that passed it, or another one of this node that it plainly waits for.

Pure. Ranks of a collective wait for the one that does not come, and whose limit is passed first is chance. Two signs
are taken for plain: the other rank is stopped, or its board shows an earlier step; and it has been as silent.
Does not cover: ranks at the same step of which none is stopped (the one that passed its limit first is accused), busy
loops, and ranks of other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STOPPED = ("T", "t")
AS_SILENT = 0.5  # share of the time that the late rank has waited
Description = Mapping[str, Any]


def whom_it_waits_for(
    late: Description, waited: float, others: Mapping[int, Description]
) -> tuple[int, str] | None:
    """Which of the others (by the key they are given under), and why, in words; None when the late rank is to be
    accused itself. `waited` is in seconds.

    Descriptions are those of :func:`.explain.describe`.
    """
    if late["state"] in STOPPED:
        return None
    silent = {key: other for key, other in others.items() if _is_silent(other, waited)}
    stopped = [key for key, other in silent.items() if other["state"] in STOPPED]
    behind = [key for key, other in silent.items() if 0 <= _step(other) < _step(late)]
    if not stopped and not behind:
        return None
    found = min(stopped or behind, key=lambda key: (_step(silent[key]), -silent[key]["silent"]))
    return found, _why(silent[found], late)


def _is_silent(other: Description, waited: float) -> bool:
    speaks = other["connected"] or other["heartbeats"]  # its steps may be counted
    return speaks and not other["finished"] and other["silent"] >= AS_SILENT * waited


def _step(found: Description) -> int:
    return -1 if found["step"] is None else int(found["step"])


def _why(found: Description, late: Description) -> str:
    if found["state"] in STOPPED:
        return f"Rank {found['rank']} is stopped (state {found['state']})"
    return f"Rank {found['rank']} is behind, at step {found['step']} of {late['step']}"
