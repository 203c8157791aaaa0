"""A rank whose program does not say where it is: its optimizer's steps are counted instead.

The launcher's prologue calls `begin` at the first step. What always holds: a `RankMonitorClient` of this process comes
first. Once one was there, or wants to begin, nothing is counted, not even after its end; and what was counted until
then is taken back. Does not cover: which steps are seen at all (`launcher/ranks/prologue/optimizer_steps.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from . import environment
from .board.counted_steps import CountedSteps, Hook
from .errors import BoardError
from .rank_log import log as _log

_lock = threading.RLock()
"""One board has one writer: the client opens it when the counting has let go of it."""
_counted: CountedSteps | None = None
_ended: Callable[[], None] | None = None
_taken = False
"""A client of this process has the board, or had it."""


def begin(ended: Callable[[], None]) -> Hook | None:
    """What is to be called after each optimizer step of this process; None if nothing is to be counted. `ended` is
    called, at most once, when the hook is needed no longer. Called once."""
    global _counted, _ended
    path = os.environ.get(environment.BOARD)
    from torch.compiler import is_dynamo_compiling

    with _lock:
        if _taken or _counted is not None or path is None:
            return None
        try:
            made = CountedSteps(path, is_dynamo_compiling)
        except BoardError as error:
            # Nobody has asked for this, so nobody has to act on it.
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


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
