"""How the exception of a rank reads that has merely lost its connection to a peer: what gloo, NCCL, the store and
sockets say. Pure.

Does not cover: an exception of the user's own that says it in other words.
"""

from __future__ import annotations

import re

LOST_CONNECTION = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|remote process exited|ncclRemoteError"
    r"|pair closure|failed to recv|socket (has been )?closed",
    re.IGNORECASE,
)


def lost_connection(error: object) -> bool:
    """Whether this is a kept exception (a mapping with `message`) of that kind."""
    message = error.get("message") if isinstance(error, dict) else None
    return isinstance(message, str) and LOST_CONNECTION.search(message) is not None
