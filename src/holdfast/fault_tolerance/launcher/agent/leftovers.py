"""What ranks that are done leave running: an upload, the write of a checkpoint. It may end by itself.

Does not cover: ranks that are stopped for a restart, or failed; what those left is ended at once, for it would stand
in its successors' way.
"""

from __future__ import annotations

import logging
import time

from ..inbox import stops
from ..ranks import orphans
from .surroundings import Surroundings

logger = logging.getLogger("holdfast.launcher")
UNSAID = 1.0  # seconds in which helpers of a Python that has ended end as well
LOOK = 0.2


def wait(agent: Surroundings, seconds: float) -> None:
    """Let it run for at most so many seconds; a signal to the launcher cuts that short."""
    began, said, kept = time.monotonic(), False, list[object]()
    while left := orphans.left(agent.spared):
        waited = time.monotonic() - began
        if waited >= seconds or any(stops(event) for event in kept):
            break
        if waited > UNSAID and not said:
            said = True
            logger.warning(
                "the ranks are done, but %d process%s that they started still run%s (pid %s): waiting for at most %g s",
                len(left),
                "es" if len(left) > 1 else "",
                "" if len(left) > 1 else "s",
                ", ".join(map(str, sorted(left)[:8])),
                seconds,
            )
        kept += agent.inbox.wait(LOOK)
    for event in kept:  # for whoever looks next
        agent.inbox.post(event)
