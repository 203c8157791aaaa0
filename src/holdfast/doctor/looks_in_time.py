"""Looks side by side, with one ceiling for all: a resolver or a filesystem may never answer.

Does not cover: the thread of a look that never returns. It is a daemon, and left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..in_time import TooLate, UnderWay

PATIENCE = 2.5
"""Seconds for all looks together."""


class Unseen(Exception):
    """A look that failed, and why."""


class Looks:
    """Looks under way, each in a thread of its own, until a common end."""

    def __init__(self, looks: Mapping[str, Callable[[], Any]], patience: float = PATIENCE) -> None:
        self._end = time.monotonic() + patience
        self._patience = patience
        self._begun = {name: _begin(each) for name, each in looks.items()}
        self._seen: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """What was seen. Raises `Unseen`."""
        if name not in self._seen:
            self._seen[name] = self._answer(name)
        if isinstance(self._seen[name], Unseen):
            raise self._seen[name]
        return self._seen[name]

    def _answer(self, name: str) -> Any:
        try:
            begun = self._begun[name]
            left = max(0.0, self._end - time.monotonic())
            return begun.answer(left) if isinstance(begun, UnderWay) else begun()
        except TooLate:
            return Unseen(f"no answer within {self._patience:g} s")
        except Exception as error:  # a file of the kernel's that is not as expected, say: the others go on
            return Unseen(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}")


def _begin(look: Callable[[], Any]) -> UnderWay[Any] | Callable[[], Any]:
    try:
        return UnderWay(look)
    except RuntimeError:  # no more threads for this user, which is to be told: then one after the other
        return look
