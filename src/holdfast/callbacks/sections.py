"""Sections that a callback opens and closes by a framework's hooks.

What always holds: nothing here raises: a section that the program opened under the same name costs a warning and no
more; only what was opened here is closed here. `within` opens nothing in another thread, as two threads in one section
could not tell whose end closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from holdfast.fault_tolerance import RankMonitorClient
from holdfast.fault_tolerance.errors import RankMonitorClientError
from holdfast.prefixed_log import Prefixed


class Sections:
    """The sections of one training."""

    def __init__(self, client: RankMonitorClient, log: Prefixed) -> None:
        self._start, self._end = client.start_section, client.end_section
        self._log = log
        self._open: set[str] = set()
        self._told = False
        self._thread = get_ident()

    def open(self, name: str) -> bool:
        """Whether it is open now by this call."""
        if name in self._open or not self._do(self._start, name):
            return False
        self._open.add(name)
        return True

    def close(self, name: str) -> None:
        """What is not open is left alone."""
        if name in self._open:
            self._open.discard(name)
            self._do(self._end, name)

    def close_all(self) -> None:
        """After an exception."""
        for name in list(self._open):
            self.close(name)

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Closed also by an exception; within itself it opens nothing."""
        opened = get_ident() == self._thread and self.open(name)
        try:
            yield
        finally:
            if opened:
                self.close(name)

    def _do(self, edge: Callable[[str], None], name: str) -> bool:
        try:
            edge(name)
        except RankMonitorClientError as error:
            if not self._told:
                self._told = True
                self._log.warning("a section of the training is not supervised: %s", error)
            return False
        return True
