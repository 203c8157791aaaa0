"""Pipes whose reader has stopped, and a terminal of a given width."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more, as that of a reader which has stopped; the descriptors are the caller's."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"." * 65536):
            pass
    os.set_blocking(writer, True)
    return reader, writer


def on_a_terminal(command: Sequence[str | Path], columns: int) -> list[str]:
    """The lines that a command, which succeeds, writes to a terminal of its own."""
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb", buffering=0) as screen:
        environment = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb"}
        process = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
        os.close(follower)
        text = b""
        with contextlib.suppress(OSError):  # how Linux ends a terminal whose other side is closed
            while chunk := screen.read(4096):
                text += chunk
        assert process.wait(60) == 0
    return text.decode().splitlines()
