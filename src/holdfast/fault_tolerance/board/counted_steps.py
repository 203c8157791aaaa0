"""The board of a rank whose program says nothing, written by a hook after each optimizer step: one heartbeat each.

A step is over when an optimizer steps that has already stepped in it: with two optimizers that take turns a step has
both, with one for each parameter it has all of them. So the first is step 1. The rank is never `connected`: readers
know by that whose steps these are. What always holds: `hook` takes well under a microsecond where the C core was
built, else about one, and raises nothing.

Does not cover: two optimizers of which one steps more often: each of its steps counts. Two that step in two threads
at once may be counted as one more or less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import counts
from .layout import FIRST_STEP, LONGEST_STEP
from .memory import private_words
from .owner import forget
from .writer import BoardWriter, NoObserver

Hook = Callable[[object, Any, Any], None]


class CountedSteps(BoardWriter):
    """`hook(optimizer, args, kwargs)` is for torch, which calls it after each step. `ignored` says that the hook is
    only looked at (`torch.compiler.is_dynamo_compiling`). Raises BoardError as a BoardWriter does."""

    __slots__ = ("hook",)

    def __init__(self, path: str, ignored: Callable[[], bool]) -> None:
        times = _Times()
        super().__init__(path, times)
        times.writer = self
        beat = self._heartbeat_at if counts.core is None else self._count_step  # type: ignore[attr-defined]
        self.hook = _counting(beat, ignored)

    def withdraw(self) -> None:
        """The program speaks for itself from now on: its board is as if no step had been counted."""
        with self._lock:
            page, self._words = self._words, private_words()
            # First: the core does not wait for the lock, and another thread may step now.
            self._bind(self._words)
            forget(page)
            self.detach()


class _Times(NoObserver):
    """Puts the times on the board; the core does that by itself."""

    writer: BoardWriter

    def heartbeat(self, now_ns: int, gap_ns: int) -> None:
        self.writer._words[LONGEST_STEP if gap_ns else FIRST_STEP] = gap_ns or now_ns


def _counting(beat: Callable[[int], None], ignored: Callable[[], bool]) -> Hook:
    """The hook. Variables of a function are the quickest that Python has."""
    step = last = 0
    stepped: set[int] = set()

    def hook(optimizer: object, args: Any, kwargs: Any) -> None:
        nonlocal step, last
        if ignored():
            return
        who = id(optimizer)
        if who == last:
            step += 1
        else:
            if who in stepped or not step:
                stepped.clear()
                step += 1
            stepped.add(who)
            # Alone in this step so far: if it steps again, that is the next.
            last = who if len(stepped) == 1 else 0
        beat(step)

    return hook
