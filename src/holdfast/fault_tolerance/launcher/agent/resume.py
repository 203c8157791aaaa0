"""When is a restarted job training again? Said once, when the first rank shows it on its board.

A step is better news than a heartbeat, a heartbeat than a section; a script that tells nothing is not spoken of.
"""

from __future__ import annotations

import time
from typing import Any

from holdfast.journal.writer import Journal

from .. import console


class Resume:
    """Since when the ranks have been down (monotonic seconds; None: they are not, or it was said)."""

    def __init__(self) -> None:
        self._since: float | None = None

    def stopped(self) -> None:
        """The ranks were stopped for a restart, or died."""
        self._since = time.monotonic()

    def seen(self, kind: str, message: dict[str, Any], journal: Journal) -> None:
        """A first sign of life of a rank in this cycle, as the monitor told it."""
        if self._since is None or kind == "first_section":
            return
        seconds = round(float(message["at"]) - self._since, 3)
        self._since = None
        # A counted step is the process's own, the first one always 1.
        own = "step" in message and not message.get("counted")
        what = f"step {message['step']}" if own else "training"
        console.logger.warning("%s resumed %.1f s after the ranks were stopped", what, seconds)
        journal.record("resume", cycle=message["cycle"], rank=message["rank"], seconds=seconds)
