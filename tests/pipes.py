"""Pipes whose reader has stopped."""

from __future__ import annotations

import contextlib
import os


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more, as that of a reader which has stopped; the descriptors are the caller's."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"." * 65536):
            pass
    os.set_blocking(writer, True)
    return reader, writer
