"""The last lines that a rank wrote to stderr: from its log file, or from the ring that its prologue keeps in memory.

A ring is a file of a fixed size: eight bytes that count everything ever written and eight with its writer's pid, both
little-endian, then the text, each byte at its count modulo the ring's size. So it never grows, its writer never waits,
and what a killed rank wrote is still there.
Does not cover: what other processes than the rank's own, and native code, write; no ring sees it.
"""

from __future__ import annotations

import os
from typing import BinaryIO

LINES = 20
TAIL_BYTES = 16384  # of a log file
RING_SUFFIX = ".stderr"  # tells a ring from a log file
HEAD = 16  # bytes
RING_BYTES = 16384  # of text; the prologue has the same number


def last_lines(path: str, pid: int) -> tuple[str, ...]:
    """The last lines in this file; none when it cannot be read, or is a ring that another process than `pid` wrote."""
    try:
        with open(path, "rb") as file:
            text = _ring(file.read(), pid) if path.endswith(RING_SUFFIX) else _tail(file)
    except (OSError, ValueError):
        return ()
    return tuple(text.decode(errors="replace").rstrip().splitlines()[-LINES:])


def _tail(file: BinaryIO) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    return file.read()


def _ring(content: bytes, pid: int) -> bytes:
    """The text in a ring, the oldest first; a line of which the beginning is overwritten is left out."""
    written, writer = (int.from_bytes(content[at : at + 8], "little") for at in (0, 8))
    text = content[HEAD : HEAD + RING_BYTES]
    if writer != pid:
        return b""
    if written <= RING_BYTES:
        return text[:written]
    at = written % RING_BYTES
    return (text[at:] + text[:at]).partition(b"\n")[2]
