"""Sections that a callback opens and closes by a framework's hooks.

What always holds: nothing here raises: a section that the program opened under the same name costs a warning and no
more; only what was opened here is closed here. Does not cover: two threads in one section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from holdfast.fault_tolerance.errors import RankMonitorClientError
from holdfast.prefixed_log import Prefixed


class SectionKeeper(Protocol):
    """What opens and closes sections: a `RankMonitorClient`."""

    def start_section(self, name: str = "") -> None: ...
    def end_section(self, name: str = "") -> None: ...


class Sections:
    """The sections of one training."""

    def __init__(self, client: SectionKeeper, log: Prefixed) -> None:
        self._start, self._end = client.start_section, client.end_section
        self._log = log
        self._open: set[str] = set()
        self._told = False

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
        opened = self.open(name)
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
