"""The launcher's log lines on standard error and in its log file, and the texts on hangs and signals.

What always holds: a caller that logs neither waits for a reader (a full pipe, a terminal held by Ctrl-S) or a disk,
nor raises (:mod:`.writer`). Lines keep their order, each message is one write, and no message can pass for several
lines.
Does not cover: messages beyond `CAPACITY` while standard error is not read, or the disk does not answer. They are
lost, and counted afterwards.
"""

from __future__ import annotations

import io
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.visible import escaped

from ..processes.proc import STATES
from .writer import AT_THE_END, PREFIX, AppendedFile, Stream, Target, Writer

logger = logging.getLogger("holdfast.launcher")
CAPACITY = 1 << 20
"""Bytes in each queue."""
_logged: set[tuple[str, str]] = set()


class _Handler(logging.Handler):
    """Writes each record to one target; a record with `lines` is several lines in one write.

    Args:
        node: Each line begins with the time and this name; empty: with neither.
    """

    def __init__(self, writer: Writer, target: Target, node: str = "") -> None:
        super().__init__()
        self.writer, self._target, self._node = writer, target, node

    def emit(self, record: logging.LogRecord) -> None:
        """Put it into the queue."""
        try:
            head = ""
            if self._node:
                local = time.localtime(record.created)
                date, zone = time.strftime("%Y-%m-%d %H:%M:%S", local), time.strftime("%z", local)
                head = f"{date}.{int(record.created % 1 * 1000):03d}{zone} {escaped(self._node)} "
            lines = list(getattr(record, "lines", None) or [record.getMessage()])
            if record.exc_info:
                lines += logging.Formatter().formatException(record.exc_info).splitlines()
            text = "".join(f"{head}{PREFIX}{escaped(line.expandtabs(4))}\n" for line in lines)
            self.writer.put(self._target, text.encode(errors="backslashreplace"))
        except Exception:
            self.handleError(record)


def set_up(level: int, path: str | None = None, node: str = "") -> None:
    """Send the launcher's lines to stderr with the prefix `[holdfast]`, and to the file if there is one.

    Args:
        node: The name of this launcher in the file, which several may share.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, ValueError, io.UnsupportedOperation):  # closed
        descriptor = -1
    handlers = [_Handler(Writer("holdfast-console", capacity=CAPACITY), Stream(descriptor))]
    if path is not None:
        trouble = "the launcher's log cannot be written to %s: %s; lines of it may be lost"
        writer = Writer("holdfast-log-file", lambda *where_why: logger.warning(trouble, *where_why), CAPACITY)
        handlers.append(_Handler(writer, AppendedFile(path, node), node))
    root = logging.getLogger("holdfast")
    root.handlers[:] = handlers
    root.propagate = False
    root.setLevel(level)


def flush() -> None:
    """Wait until all lines are written, for a second at most per target: nothing may read it, or its disk hangs."""
    # Standard error is the last: trouble with the file is a line on it.
    for handler in reversed(logging.getLogger("holdfast").handlers):
        if isinstance(handler, _Handler):
            handler.writer.drain(AT_THE_END)


def log_block(lines: list[str], level: int = logging.WARNING) -> None:
    """Several lines in one write, so that they stay together among the ranks' own output."""
    logger.log(level, "%s", lines[0], extra={"lines": lines})


@contextmanager
def best_effort(what: str, record: Callable[..., object]) -> Iterator[None]:
    """Work that only informs people: an error in it goes to the journal and the log, and the job continues.

    Each `what` and error is logged once. Does not cover: what decides about the job (:mod:`.driver`).
    """
    try:
        yield
    except Exception as error:
        record("launcher_error", what=what, error=repr(error))
        if (what, repr(error)) not in _logged and len(_logged) < 100:
            _logged.add((what, repr(error)))
            message = "%s failed (%r); the job continues. Please report this as a bug of Holdfast"
            logger.warning(message, what, error)
            logger.debug("where:", exc_info=error)


# -- texts ----------------------------------------------------------------------------------------------------


def place(report: dict[str, Any]) -> str:
    """Where a rank is: `in data_loading > read, state D (disk wait), for 31.0 s, step 4181`."""
    parts = [f"in {report['where']}" if report["where"] else "in no section"]
    if report["finished"]:
        return "finished"
    if not report["connected"]:
        parts = ["between optimizer steps" if report["heartbeats"] else "not connected yet"]
    state = report["state"]
    parts.append(f"state {state} ({STATES[state]})" if state in STATES else f"state {state}")
    if report.get("wait_channel"):
        parts.append(f"waits in kernel function {report['wait_channel']}")
    parts.append(f"for {report['for']:.1f} s")
    if report["step"] is not None:
        parts.append(f"step {report['step']}")
    return ", ".join(parts)


def hang(node: str, verdict: dict[str, Any]) -> list[str]:
    """The block that explains a hang."""
    limit = f"Timeout {verdict['limit']:.1f} s."
    if verdict.get("reason") == "early":
        limit = "No deadline was passed yet (--ft-early-detection)."
    lines = [
        f"HANG: rank {verdict['rank']} (node {node}, pid {verdict['pid']}, cycle {verdict['cycle']}): "
        f"{verdict['text']} {limit}",
        f"  rank {verdict['rank']} is {place(verdict)}",
    ]
    for (text, count), ranks in _grouped(verdict.get("others", [])).items():
        shown = ", ".join(map(str, ranks[:4])) + (", …" if count > 4 else "")
        who = f"rank {ranks[0]} is" if count == 1 else f"{count} ranks ({shown}) are"
        lines.append(f"  {who} {text}")
    if verdict.get("sentence"):
        lines.append(f"  verdict: {verdict['sentence']} (confidence {verdict['confidence']})")
    if verdict.get("signal"):
        lines.append(f"  {verdict['signal']} sent to rank {verdict['rank']}")
    return lines


def _grouped(others: list[dict[str, Any]]) -> dict[tuple[str, int], list[int]]:
    """Ranks that are in the same place are one entry, with the longest stay."""
    same: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for other in others:
        same.setdefault((other["where"], other["step"]), []).append(other)
    return {
        (place(max(members, key=lambda each: float(each["for"]))), len(members)): sorted(
            each["rank"] for each in members
        )
        for members in same.values()
    }


def overdue(node: str, rank: dict[str, Any]) -> str:
    """The documented line on a rank that is past its timeout when a hang is handled."""
    who = f"rank {rank['rank']} (node {node}, pid {rank['pid']}, cycle {rank['cycle']})"
    return f"TIMEOUT: {who}: {rank['text']} Timeout {rank['limit']:.1f} s."


def recovered(node: str, rank: dict[str, Any]) -> str:
    """The line on a rank that passed a deadline, and was active again while its evidence was captured."""
    return (
        f"rank {rank['rank']} (node {node}, pid {rank['pid']}, cycle {rank['cycle']}) passed a deadline and was active "
        f"again while its evidence was captured: {rank['text']} It is not terminated. Either the timeout is too "
        f"short, or reading its stack ended what it was waiting for"
    )


def received(number: signal.Signals) -> None:
    """The documented line on a signal that ends the job."""
    logger.warning("Received Signals.%s death signal, shutting down workers", number.name)
