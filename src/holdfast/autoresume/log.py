"""The log lines of a running chain, on standard error.

Does not cover: a pipe that is not read; it blocks, as it does the command's own output.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ..visible import escaped


def say(text: str) -> None:
    """One line on standard error; nobody may be reading it."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"[holdfast] {escaped(text)}\n")  # names of folders are anybody's
        sys.stderr.flush()


def say_undead(pids: Iterable[int]) -> None:
    """Processes that even SIGKILL does not end."""
    if left := sorted(pids):
        say(
            f"still there after SIGKILL (in the kernel, state D?): {listed(left)}. Going on without waiting for it"
        )


def listed(pids: Iterable[int]) -> str:
    """`process 17`, `processes 17, 18, …`."""
    found = sorted(pids)
    names = ", ".join(map(str, found[:8])) + (", …" if len(found) > 8 else "")
    return f"process{'es' if len(found) > 1 else ''} {names}"


def shown(command: Sequence[str]) -> str:
    """A command for people, as a shell would read it, not longer than a line or two."""
    text = escaped(shlex.join(command))
    return text if len(text) <= 200 else text[:199] + "…"
