"""Which one, where several ranks are not in the collective in which the others wait. Pure.

Always holds: a rank for which somebody waits by the flight recorder goes before one for which nobody does, one that is
still before one that moves, one at an earlier step before one at a later.
Does not cover: how sure that is beyond yes or no.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from ..evidence import Collective
from .recorder import reached
from .scene import Seen, alive

_HOLDER = re.compile(r"held by pid (\d{1,9})")
_SPECIFIC = ("unknown", "user_code", "startup")
"""What a healthy rank also does; anything else is rather the reason."""


def chosen(
    candidates: Sequence[Seen], waiting: Sequence[Seen], accused: Collection[int]
) -> tuple[Seen, bool]:
    """The likeliest of them, and whether the evidence, rather than an order of ours, has singled it out."""
    pool = list(candidates)
    if len(pool) == 1:
        return pool[0], True
    for narrower in (_awaited(waiting), _still, _earliest, _specific):
        pool = narrower(pool) or pool
        if len(pool) == 1:
            return pool[0], True
    by_limit = [seen for seen in pool if seen.rank in accused] or [
        seen for seen in pool if seen.evidence.passed
    ]
    return (by_limit or pool)[0], len(by_limit) == 1


def _awaited(waiting: Sequence[Seen]) -> Callable[[list[Seen]], list[Seen]]:
    """Members of a group who have not come to the collective in which others of it wait."""
    furthest: dict[tuple[object, ...], Collective] = {}
    for last in (seen.last for seen in waiting if seen.last is not None):
        # Sixteen thousand ranks name sixteen thousand members each: their ends tell groups of one name apart.
        key = (last.group, len(last.members), *last.members[:2], *last.members[-1:])
        if key not in furthest or last.sequence > furthest[key].sequence:
            furthest[key] = last
    groups = [(last.group, last.sequence, frozenset(last.members)) for last in furthest.values()]

    def narrower(pool: list[Seen]) -> list[Seen]:
        return [seen for seen in pool if any(_is_missing(seen, *each) for each in groups)]

    return narrower


def _is_missing(seen: Seen, group: str, sequence: int, members: frozenset[int]) -> bool:
    if members and seen.rank not in members:
        return False
    last = reached(seen.evidence.collectives, group)
    return last < sequence if last is not None else bool(members)


def _still(pool: list[Seen]) -> list[Seen]:
    return [seen for seen in pool if not alive(seen)]


def _earliest(pool: list[Seen]) -> list[Seen]:
    steps = [board.step for seen in pool if (board := seen.evidence.board) and board.step is not None]
    if len(steps) < len(pool):
        return pool
    return [seen for seen in pool if seen.evidence.board and seen.evidence.board.step == min(steps)]


def _specific(pool: list[Seen]) -> list[Seen]:
    return [seen for seen in pool if seen.doing.kind not in _SPECIFIC]


def holder_of_the_lock(outside: Iterable[Seen], living: Sequence[Seen]) -> tuple[Seen, list[Seen]] | None:
    """The rank that has the file lock for which others wait, and these; None where it waits for its peers itself."""
    waits: dict[int, list[Seen]] = {}
    for seen in outside:
        process = seen.evidence.process
        found = _HOLDER.search(process.system_call) if process and seen.doing.kind == "lock" else None
        if found:
            waits.setdefault(int(found[1]), []).append(seen)
    for pid, those in sorted(waits.items()):
        holder = next((seen for seen in living if pid == seen.evidence.pid), None)
        on_its_node = holder is not None and all(seen.evidence.node == holder.evidence.node for seen in those)
        if holder is not None and on_its_node and holder not in those and not holder.waits:
            return holder, those
    return None
