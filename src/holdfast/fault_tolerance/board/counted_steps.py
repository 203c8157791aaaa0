"""The board of a rank whose program says nothing, written by a hook after each optimizer step: one heartbeat each.

A step is over when an optimizer steps that has already stepped in it: with two optimizers that take turns a step has
both, with one for each parameter it has all of them. So the first is step 1. The rank is never `connected`: readers
know by that whose steps these are. What always holds: `hook` takes well under a microsecond, and raises nothing.

Does not cover: two optimizers of which one steps more often: each of its steps counts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import monotonic_ns
from typing import Any

from .layout import (
    EVENT_WORDS,
    FIRST_STEP,
    HEARTBEATS,
    LAST_HEARTBEAT,
    LONGEST_STEP,
    RING,
    RING_MASK,
    SEQUENCE,
    STEP,
    STEPPED,
)
from .owner import forget
from .writer import BoardWriter

Lock = AbstractContextManager[Any]
Hook = Callable[[object, Any, Any], None]


class CountedSteps(BoardWriter):
    """`hook(optimizer, args, kwargs)` is for torch, which calls it after each step. `ignored` says that the hook is
    only looked at (`torch.compiler.is_dynamo_compiling`). Raises BoardError as a BoardWriter does."""

    __slots__ = ("_write_to", "hook")

    def __init__(self, path: str, ignored: Callable[[], bool]) -> None:
        self.hook, self._write_to = _counting(ignored)
        super().__init__(path)

    def _bind(self, words: memoryview) -> None:
        super()._bind(words)
        self._write_to(words, self._lock)

    def withdraw(self) -> None:
        """The program speaks for itself from now on: its board is as if no step had been counted."""
        with self._lock:
            forget(self._words)
            self.detach()


def _counting(ignored: Callable[[], bool]) -> tuple[Hook, Callable[[memoryview, Lock], None]]:
    """The hook, and what says where it writes. Variables of a function are the quickest that Python has."""
    lock: Lock = nullcontext()
    words = memoryview(bytearray())
    sequence = beats = step = last = previous = longest = 0
    stepped: set[int] = set()

    def hook(optimizer: object, args: Any, kwargs: Any) -> None:
        nonlocal sequence, beats, step, last, previous, longest
        if ignored():
            return
        who = id(optimizer)
        with lock:
            if who != last or len(stepped) > 1:
                if who in stepped:
                    stepped.clear()
                    step += 1
                elif not step:
                    step = 1
                stepped.add(who)
                last = who
            else:
                step += 1
            now = monotonic_ns()
            entry = RING + (sequence >> 1 & RING_MASK) * EVENT_WORDS
            # As in `strokes`: until the sequence is even again there is no call, so nothing can come between.
            words[SEQUENCE] = sequence + 1
            beats += 1
            words[HEARTBEATS] = beats
            words[LAST_HEARTBEAT] = now
            words[STEP] = step + 1
            words[entry] = now
            words[entry + 1] = STEPPED
            words[entry + 2] = step
            sequence += 2
            words[SEQUENCE] = sequence
            if not previous:
                words[FIRST_STEP] = now
            elif now - previous > longest:
                words[LONGEST_STEP] = longest = now - previous
            previous = now

    def write_to(page: memoryview, its_lock: Lock) -> None:
        nonlocal words, lock, sequence, beats
        words, lock = page, its_lock
        sequence, beats = (page[SEQUENCE] + 1) & ~1, page[HEARTBEATS]

    return hook, write_to
