"""Failures that only follow from a signal to all processes: a rank whose peer, or whose data-loader workers, it ended.

Pure. torch tells a rank that its workers are gone by a RuntimeError in whatever the rank is doing, or what it was doing
with one of them fails. Workers that ended for want of memory are told of as killed by SIGKILL: that is a failure of its
own.
Does not cover: other programs' children, and exceptions in other words.
"""

from __future__ import annotations

import re

from .failures import Failure

LOST_WORKER = re.compile(
    r"DataLoader worker \(pid(\(s\))? [\d, ]+\) "
    r"(exited unexpectedly|is killed by signal: (Terminated|Interrupt|Hangup|Quit|User defined signal))"
)

CUT_OFF = {
    "ConnectionResetError",
    "ConnectionRefusedError",
    "BrokenPipeError",
    "EOFError",
    "FileNotFoundError",
}
"""What the data loader raises when a worker goes in the middle of handing over a batch."""


def lost_worker(failure: Failure) -> bool:
    """Whether a data-loader worker of the rank was ended from outside, not by SIGKILL."""
    error = failure.error
    if error is None:
        return False
    in_loader = "torch/utils/data/" in str(error.get("traceback"))
    return bool(LOST_WORKER.search(error["message"])) or (error["type"] in CUT_OFF and in_loader)


def follows(failure: Failure) -> bool:
    """Whether the failure may be the consequence of a signal that others got."""
    return not failure.hung and (failure.lost_connection or lost_worker(failure))
