"""Failures that only follow from a signal to all processes: a rank whose peer, or whose data-loader workers, it ended.

Pure. torch tells a rank that its workers are gone by a RuntimeError in whatever the rank is doing. Workers that ended
for want of memory are told of in the same way, as killed by SIGKILL: that is a failure of its own.
Does not cover: other programs' children, and exceptions in other words.
"""

from __future__ import annotations

import re

from .failures import Failure

LOST_WORKER = re.compile(
    r"DataLoader worker \(pid(\(s\))? [\d, ]+\) "
    r"(exited unexpectedly|is killed by signal: (Terminated|Interrupt|Hangup|Quit|User defined signal))"
)


def lost_worker(failure: Failure) -> bool:
    """Whether a data-loader worker of the rank was ended from outside, not by SIGKILL."""
    return failure.error is not None and LOST_WORKER.search(failure.error["message"]) is not None


def follows(failure: Failure) -> bool:
    """Whether the failure may be the consequence of a signal that others got."""
    return not failure.hung and (failure.lost_connection or lost_worker(failure))
