"""`checkpoint_iteration_file`: reads the iteration of the last checkpoint, in a thread.

What always holds: the driver never waits for the file, and each reading posts one answer. The reason why there is no
number is logged and recorded once.
Does not cover: who writes the file, and whether the checkpoint of that iteration is complete. A filesystem that hangs
keeps one thread for good.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.in_time import TooLate, UnderWay

from .control.messages import IterationRead
from .control.node import READING

logger = logging.getLogger("holdfast.launcher")
LONGEST = 100
"""Bytes that are read: a number and the white space around it."""


class IterationFile:
    """One file.

    Args:
        path: It may not exist yet.
        post: Takes each answer, an `IterationRead`, from any thread.
        record: :meth:`holdfast.journal.writer.Journal.record`.
    """

    def __init__(self, path: str, post: Callable[[object], None], record: Callable[..., None]) -> None:
        self._path, self._post, self._record = path, post, record
        self._lock = threading.Lock()  # held by one reading after the other
        self._call: UnderWay[int] | None = None  # the newest; one that hangs is not followed by another
        self._reported: set[str] = set()
        self._is_first = True

    def read(self, cycle: int) -> None:
        """Begin a reading; its answer is for this cycle."""
        try:
            UnderWay(lambda: self._read(cycle))
        except RuntimeError as error:
            self._answer(cycle, -1, str(error))

    def _read(self, cycle: int) -> None:
        with self._lock:
            try:
                if self._call is None or self._call.is_done:  # what an earlier one has found since is old
                    self._call = UnderWay(self._number)
                number, why = self._call.answer(READING), ""
            except TooLate:
                self._answer(cycle, -1, f"its filesystem has not answered for {READING:g} s")
                return
            except FileNotFoundError as error:
                number, why = 0, "" if self._is_first else str(error.strerror)
            except (OSError, ValueError, RuntimeError) as error:
                number, why = -1, str(getattr(error, "strerror", None) or error)
            self._call, self._is_first = None, False
            self._answer(cycle, number, why)

    def _number(self) -> int:
        with open(self._path, "rb") as file:
            text = file.read(LONGEST).decode(errors="replace").strip()
        if not text.isdecimal() or len(text) > 18:  # the journal has numbers of 64 bits
            raise ValueError(f"{text!r} is no iteration")
        return int(text)

    def _answer(self, cycle: int, number: int, why: str) -> None:
        if why and why not in self._reported:
            self._reported.add(why)
            counts = "does not count as one without progress" if number < 0 else "counts from iteration 0"
            text = "checkpoint_iteration_file %s: %s. Cycle %d %s. Check the path"
            logger.warning(text, self._path, why, cycle, counts)
            self._record("iteration_unread", file=self._path, reason=why)
        self._post(IterationRead(cycle, number))
