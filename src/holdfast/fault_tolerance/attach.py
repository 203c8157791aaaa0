"""How a rank comes to its board: by the path in its environment, once per process, or not at all.

What always holds: only misuse raises (not started by the launcher although that is required, two clients at once).
A board that is missing, damaged or another process's is said once, and the rank runs on without reporting. Where the
user set an initial limit, the monitor still applies it: for all it can see, the rank has not begun.

Does not cover: a program that removes the variable from its environment; it counts as not started by the launcher.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable

from . import environment, optimizer_steps
from .board import BoardError, BoardWriter
from .board.strokes import Observer
from .errors import RankMonitorClientError
from .rank_log import log as _log

_ATTACHED: weakref.WeakSet[BoardWriter] = weakref.WeakSet()


def attach(observer: Observer, *, required: bool) -> BoardWriter:
    """This rank's writer; one over private memory where there is no board to write.

    Raises RankMonitorClientError if the environment names no board although one is `required`, and if another client
    of this process writes the board already.
    """
    path = os.environ.get(environment.BOARD)
    if path is None:
        if required:
            raise RankMonitorClientError(
                f"{environment.BOARD} is not set: start the program with ft_launcher, or use "
                "RankMonitorClient(required=False) to run it without supervision"
            )
        return BoardWriter(None, observer)
    optimizer_steps.give_way()
    if any(writer.attached for writer in _ATTACHED):
        raise RankMonitorClientError(
            "another RankMonitorClient of this process is initialised already; share it, or shut it down first"
        )
    try:
        writer = _AskedWriter(path, observer, on_new_section=_mention)
    except BoardError as error:
        _log.warning(
            "this process (pid %d) does not report what it does: %s. A hang of it is not found; only a limit that the "
            "user set for the rank's first heartbeat still binds",
            os.getpid(),
            error,
        )
        return BoardWriter(None, observer)
    _ATTACHED.add(writer)
    writer.let_it_be_asked()
    return writer


class _AskedWriter(BoardWriter):
    """While it is attached, this process tells who asks where it is (`launcher/ranks/prologue/witness.py`)."""

    _end: Callable[[], object] | None = None

    def let_it_be_asked(self) -> None:
        """A rank that is not the launcher's, or that has no torch.distributed, comes to it in no other way."""
        try:
            from .launcher.ranks.prologue import testimony, witness

            undo = witness.connect(os.environ, testimony)
            if undo is not None:
                finalizer = weakref.finalize(self, undo)  # also where the client is just forgotten
                finalizer.atexit = False
                self._end = finalizer
        except Exception as error:
            _log.debug("nobody can ask this process where it is: %r", error)

    def detach(self) -> None:
        """As a `BoardWriter` does; who is not the launcher's rank cannot be asked any more."""
        end, self._end = self._end, None
        if end is not None:
            end()
        super().detach()


def _mention(name: str) -> None:
    # All ranks open much the same sections: one says it aloud.
    level = logging.WARNING if os.environ.get("RANK", "0") == "0" else logging.INFO
    _log.log(
        level,
        "section %r has no limit: a hang in it is found by other limits only. Set one with "
        "--ft-rank-section-timeouts=%s:SECONDS, or let one be learned",
        name,
        name,
    )
