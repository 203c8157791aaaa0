"""The collectives that ranks were in, by torch's flight recorder: who waits in which, who is not there, who differs.

Pure. Always holds: sequence numbers are compared within one process group only; a group's members are those that the
recorder names, and for the default group all ranks.
Does not cover: a recorder that does not say what is done (gloo's says "scheduled" of each): the last entry of a rank
counts as the one that it waits in if its stack is in a collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from ..evidence import Collective

DONE = frozenset({"completed", "done", "retired"})
UNEVEN = ("gather", "scatter", "send", "recv", "all_to_all", "alltoall", "coalesced", "broadcast_object")
"""Operations whose ranks may well have other sizes than each other."""
K = TypeVar("K", bound=Hashable)


def latest(entries: Sequence[Collective]) -> Collective | None:
    """The one that was entered last."""
    return min(entries, key=lambda entry: (entry.ago, -entry.sequence), default=None)


def says_what_is_done(entries: Sequence[Collective]) -> bool:
    """Whether the recorder tells finished collectives from others."""
    return any(entry.state in DONE for entry in entries)


def pending(entries: Sequence[Collective]) -> Collective | None:
    """The one that is known not to be done; None where the recorder does not say what is done."""
    if not says_what_is_done(entries):
        return None
    last = latest(entries)
    return last if last is not None and last.state not in DONE else None


def signature(entry: Collective) -> tuple[str, str, str]:
    """What ranks must agree on."""
    name = entry.operation.rsplit(":", 1)[-1]
    if any(word in name for word in UNEVEN) and not name.startswith("all_gather"):
        return name, "", ""
    return name, entry.sizes, entry.dtype


def reached(entries: Iterable[Collective], group: str) -> int | None:
    """The last sequence number in a group; None where it was in none of its collectives."""
    return max((entry.sequence for entry in entries if entry.group == group), default=None)


def odd(values: Mapping[int, K]) -> tuple[int, ...]:
    """Those that differ from the majority; empty where there is no majority or all agree."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return ()
    (most, often), (_, next_often) = counts.most_common(2)
    if often <= next_often or often * 2 <= len(values):
        return ()
    return tuple(sorted(rank for rank, value in values.items() if value != most))


def off_its_pattern(entries: Sequence[Collective]) -> bool | None:
    """Whether the last collective of its group is not what this rank has always done next; None: no pattern."""
    last = latest(entries)
    if last is None:
        return None
    line = [signature(entry) for entry in sorted(entries, key=_sequence) if entry.group == last.group]
    before, now = line[:-1], line[-1]
    for period in range(1, len(before) // 2 + 1):
        if all(before[-i] == before[-i - period] for i in range(1, len(before) - period + 1)) or _repeats(
            before, period
        ):
            return before[-period] != now
    return None


def _repeats(before: Sequence[Hashable], period: int) -> bool:
    """Whether the end is two whole rounds of this length: what came before, at the start, may differ."""
    return period > 1 and before[-period:] == before[-2 * period : -period]


def _sequence(entry: Collective) -> int:
    return entry.sequence


def said(entry: Collective) -> str:
    """`all_reduce (sequence 911, [[1024]])`."""
    name = entry.operation.rsplit(":", 1)[-1]
    sizes = f", sizes {entry.sizes}" if entry.sizes and len(entry.sizes) <= 40 else ""
    return f"{name} (sequence {entry.sequence}{sizes})"
