"""How the exception of a rank reads that has merely lost its connection to a peer: what torch raises for gloo, NCCL
and the store. Pure.

Python's own ConnectionResetError or BrokenPipeError is not of that kind: it is about a connection of the program's own,
to a data service say, and may well be the cause.
Does not cover: an exception of the user's own that says it in other words, or says the same of something else.
"""

from __future__ import annotations

import re

LOST_CONNECTION = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|remote process exited|ncclRemoteError"
    r"|pair closure|failed to recv|socket (has been )?closed",
    re.IGNORECASE,
)


def lost_connection(error: object) -> bool:
    """Whether this is a kept exception (a mapping with `type` and `message`) of that kind."""
    if not isinstance(error, dict):
        return False
    kind, message = str(error.get("type")), error.get("message")
    ours = kind == "RuntimeError" or kind.startswith("Dist")  # torch's: DistBackendError, DistNetworkError, …
    return ours and isinstance(message, str) and LOST_CONNECTION.search(message) is not None
