"""The last lines that a rank wrote to stderr: from its log file, or from the ring that its prologue keeps in memory.

A ring is a file of a fixed size: eight bytes that count everything ever written, little-endian, then the text, each
byte at its count modulo the ring's size. So it never grows, its writer never waits, and what a killed rank wrote is
still there.
Does not cover: what other processes than the rank's own, and native code, write; no ring sees it.
"""

from __future__ import annotations

import os
from typing import BinaryIO

LINES = 20
TAIL_BYTES = 16384  # of a log file
RING_SUFFIX = ".stderr"  # tells a ring from a log file
HEAD = 8  # bytes
RING_BYTES = 16384  # of text; the prologue has the same number


def last_lines(path: str) -> tuple[str, ...]:
    """The last lines in this file; none when it cannot be read."""
    try:
        with open(path, "rb") as file:
            text = _ring(file.read()) if path.endswith(RING_SUFFIX) else _tail(file)
    except (OSError, ValueError):
        return ()
    return tuple(text.decode(errors="replace").rstrip().splitlines()[-LINES:])


def _tail(file: BinaryIO) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    return file.read()


def _ring(content: bytes) -> bytes:
    """The text in a ring, the oldest first; a line of which the beginning is overwritten is left out."""
    written, text = int.from_bytes(content[:HEAD], "little"), content[HEAD : HEAD + RING_BYTES]
    if written <= RING_BYTES:
        return text[:written]
    at = written % RING_BYTES
    return (text[at:] + text[:at]).partition(b"\n")[2]
