"""Ranks that are alike as one entry, and their numbers in few words. Pure.

What always holds: every rank is in exactly one group, the largest group comes first, and of two equal ones the one
with the lower rank.

Does not cover: what makes ranks alike; the caller's key says that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from ..evidence import Frame, RankEvidence, Thread

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(ranks: Iterable[T], key: Callable[[T], K | None]) -> list[tuple[K, list[T]]]:
    """The ranks by key, the largest group first; those without one are left out."""
    found: dict[K, list[T]] = {}
    for rank in ranks:
        what = key(rank)
        if what is not None:
            found.setdefault(what, []).append(rank)
    return sorted(found.items(), key=lambda group: -len(group[1]))  # stable: the order in which they were met


def same_stack(rank: RankEvidence) -> tuple[Frame, ...] | None:
    """A key: the main thread's calls, the innermost first. None without a stack."""
    thread = main_thread(rank)
    return thread.frames if thread and thread.frames else None


def main_thread(rank: RankEvidence) -> Thread | None:
    """The thread that trains; the first one where none is marked as the main thread."""
    marked = [thread for thread in rank.stacks if thread.main]
    return next(iter(marked or rank.stacks), None)


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as first and last of each unbroken run, ascending."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def rank_ranges(numbers: Iterable[int], most: int = 6) -> str:
    """`0-4, 6-63`; of more than `most` runs the first ones, and how many ranks are left out."""
    found = runs(numbers)
    shown = found[:most] if len(found) > most + 1 else found
    rest = sum(last - first + 1 for first, last in found[len(shown) :])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in shown)
    return f"{text} and {rest} more" if rest else text


def named(numbers: Sequence[int], most: int = 6) -> str:
    """`rank 5`, or `ranks 0-4, 6-63`."""
    return f"rank{'s' if len(set(numbers)) > 1 else ''} {rank_ranges(numbers, most)}"


def counted(numbers: Sequence[int], most: int = 6) -> str:
    """`rank 5`, or `63 ranks (0-4, 6-63)`."""
    many = len(set(numbers))
    return named(numbers) if many == 1 else f"{many} ranks ({rank_ranges(numbers, most)})"
