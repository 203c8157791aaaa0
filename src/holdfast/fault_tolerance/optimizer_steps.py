"""A rank whose program does not report where it is: its optimizer's steps are counted instead, one heartbeat each.

The launcher's prologue calls `begin` at the first step. A step is over when an optimizer steps that has already
stepped in it: with two optimizers that take turns a step has both, with one for each parameter it has all of them. So
the first is step 1. The rank is never `connected`: readers recognise counted steps by that.

What always holds: a `RankMonitorClient` of this process has precedence. Once one existed, or wants to begin, nothing is
counted, not even after its end; and what was counted until then is taken back. The hook takes about a
microsecond and raises nothing.

Does not cover: which steps are seen at all (`launcher/ranks/prologue/optimizer_hook.py`). Two optimizers of which one
steps more often: each of its steps counts. Two that step in two threads at once may be counted as one more or less.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from holdfast.prefixed_log import log as _log

from .board import BoardWriter
from .board.layout import FIRST_STEP, LONGEST_STEP, RANK_BYTES
from .board.mapped import private_words
from .board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from .board.writer import reset
from .errors import BoardError

Hook = Callable[[object, Any, Any], None]

_lock = threading.RLock()
"""One board has one writer: the client opens it when the counting has let go of it."""
_counted: CountedSteps | None = None
_ended: Callable[[], None] | None = None
_taken = False
"""A client of this process has the board, or had it."""


def begin(ended: Callable[[], None]) -> Hook | None:
    """The hook to be called after each optimizer step of this process; None if nothing is to be counted. `ended` is
    called, at most once, when the hook is needed no longer. Called once."""
    global _counted, _ended
    path = os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
    from torch.compiler import is_dynamo_compiling

    with _lock:
        if _taken or _counted is not None or path is None:
            return None
        try:
            made = CountedSteps(path, is_dynamo_compiling)
        except BoardError as error:
            # The user did not ask for this, so the user need not act on it.
            _log.debug("the steps of process %d are not counted: %s", os.getpid(), error)
            return None
        if _taken:  # by a signal handler that ran in this thread
            made.detach()  # type: ignore[unreachable]
            return None
        _counted, _ended = made, ended
        return made.hook


def give_way() -> None:
    """A client takes the board; nothing was counted before it, and nothing will be."""
    global _taken, _counted, _ended
    with _lock:
        _taken = True
        counted, _counted = _counted, None
        ended, _ended = _ended, None
        if counted is not None:
            counted.withdraw()
    if ended is not None:
        ended()


class CountedSteps(BoardWriter):
    """`hook(optimizer, args, kwargs)` is for torch, which calls it after each step. `ignored` reports that torch only
    traces the hook (`torch.compiler.is_dynamo_compiling`). Raises BoardError as a BoardWriter does."""

    def __init__(self, path: str, ignored: Callable[[], bool]) -> None:
        super().__init__(path)
        self._observe_heartbeat = self._record_time
        self.hook = _counting(self.heartbeat, ignored)

    def _record_time(self, now_ns: int, gap_ns: int) -> None:
        """When the first step ended, then the longest time between two."""
        self._words[LONGEST_STEP if gap_ns else FIRST_STEP] = gap_ns or now_ns

    def withdraw(self) -> None:
        """The program reports for itself from now on: its board is as if no step had been counted."""
        with self._lock:
            page, self._words = self._words, private_words(RANK_BYTES)
            reset(page)
            self.detach()


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


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
