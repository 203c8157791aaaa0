"""The way of the launcher's lines to standard error: a queue, and a thread that writes.

What always holds: whoever logs neither waits for a reader (a full pipe, a terminal held by Ctrl-S) nor raises; lines
keep their order, each message is one write, and whatever stands in a message it cannot pass for lines of its own.
Does not cover: messages beyond `CAPACITY` while nobody reads. They are lost, and counted once somebody does.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import select
import sys
import threading

CAPACITY = 2000
PREFIX = "[holdfast] "


class Writer(logging.Handler):
    """Writes each record with the prefix; a record with `lines` is several lines in one write."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: queue.Queue[bytes | threading.Event] = queue.Queue(CAPACITY)
        self._lost = 0
        self._descriptor = _standard_error()
        threading.Thread(target=self._run, name="holdfast-console", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Put it into the queue."""
        try:
            self._queue.put_nowait(text(record).encode(errors="backslashreplace"))
        except queue.Full:
            self._lost += 1
        except Exception:
            self.handleError(record)

    def drain(self, seconds: float) -> None:
        """Wait until everything so far is written, at most this long."""
        written = threading.Event()
        try:
            self._queue.put_nowait(written)
        except queue.Full:
            return  # nobody has read for long
        written.wait(seconds)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            self._write(item)
            if self._lost:
                lost, self._lost = self._lost, 0
                self._write(f"{PREFIX}{lost} lines are lost: nobody read standard error\n".encode())

    def _write(self, rest: bytes) -> None:
        while rest and self._descriptor >= 0:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody who has the same terminal or pipe made it non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError:  # its reader is gone
                return


def text(record: logging.LogRecord) -> str:
    """The record as whole lines."""
    lines = list(getattr(record, "lines", None) or [record.getMessage()])
    if record.exc_info:
        lines += logging.Formatter().formatException(record.exc_info).splitlines()
    return "".join(f"{PREFIX}{printable(line)}\n" for line in lines)


def printable(line: str) -> str:
    """Names and descriptions come from the ranks: what would move the cursor or begin a line is shown, not done."""
    if line.isprintable():
        return line
    return "".join(
        sign if sign.isprintable() or sign == "\t" else sign.encode("unicode_escape").decode()
        for sign in line
    )


def _standard_error() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, ValueError, io.UnsupportedOperation):  # closed, or was so from the start
        return -1
