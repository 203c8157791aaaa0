"""Failures of the detector itself: logged once, and never raised into the training.

Does not cover: an `Exception` that a signal handler of the program raises while the detector works: it is taken for the
detector's own.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LONGEST_REASON = 200  # gloo's texts are long

log = logging.getLogger("holdfast.straggler")


class Failures:
    """The failures of one use of the detector. Each part is logged when it fails for the first time."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, part: str, error: Exception) -> None:
        """Log that a part failed, unless it was logged before."""
        if part not in self._logged:
            self._logged.add(part)
            log.warning(
                "straggler detector: %s failed: %s. Training continues; this is logged once",
                part,
                reason(error),
            )

    def guarded(self, part: str, call: Callable[[], T], otherwise: T) -> T:
        """The result of `call`, or `otherwise` where it fails."""
        try:
            return call()
        except Exception as error:
            self.log(part, error)
            return otherwise


def reason(error: BaseException) -> str:
    """The error in one line of bounded length."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), _LONGEST_REASON)}"


def log_ended(error: BaseException) -> None:
    """Log that the ranks can exchange no more reports."""
    log.warning("straggler reports have ended: %s. Training continues without them", reason(error))
