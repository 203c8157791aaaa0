"""Why a rank failed: the exception that it left, torch's error file, its last stderr lines; and the log block on it.

Its stderr is a log file, or a file of a fixed size that its prologue maps: it has the last of the text, then zeros, so
it never grows, its writer never waits, and it survives a kill.
What always holds: secrets of the environment are removed from these texts where they are read.
Does not cover: the stderr of native code, children and programs that are not Python. It goes straight to the
launcher's (without ``--tee`` and ``--redirects``), above the launcher's own lines.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.in_time import TooLate, within
from holdfast.incidents.classify import comes_from_outside, nature_of_exception
from holdfast.incidents.evidence import Nature
from holdfast.visible import without_numbers

from .. import console
from ..control.messages import Cause
from ..control.records import CycleRecord, Kind
from ..exit_codes import RankExit

logger = logging.getLogger("holdfast.launcher")
LAST_LINES = 20
TAIL_BYTES = 16384
SIGNATURE = 200
"""Characters of an exception that are compared."""
DISK = 1.0
"""Seconds for the disk that has the ranks' logs."""
SOON = 5.0
"""Seconds in which an exception that a program showed explains its end."""
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
"""Exceptions of the data loader when a worker ends while it hands over a batch."""
UNTOLD = {"type": "an uncaught exception", "message": "its text is not known", "traceback": ""}
"""Of a rank that could not keep it: its text cannot be made, or a signal's handler raised in the meantime."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's end with what is known of the cause; `error` has type, message, traceback and at, or is None.

    `hung` is the monitor's verdict on a rank that was ended for a hang: whatever it did then, that was the cause.
    `kept_by` is what kept the process after its exception, where it had to be killed. `has_raised`: an uncaught
    exception has ended its main thread, whether its text is known or not.
    """

    exit: RankExit
    error: dict[str, Any] | None
    last_lines: tuple[str, ...] = ()
    hung: dict[str, Any] | None = None
    kept_by: str = ""
    has_raised: bool = False

    @property
    def leaving(self) -> bool:
        """Whether the exception ends the rank's own process: it was not merely shown by the program, nor that of a
        program that a shell script ran."""
        error = self.error or {}
        return error.get("pid") == self.exit.pid and bool(error.get("unhandled"))

    @property
    def began(self) -> float:
        """When it began to fail (monotonic seconds): the verdict's or the exception's moment, else the exit's."""
        cause = self.hung if self.hung and not self.leaving else self.error
        at = cause.get("at") if cause else None
        return min(float(at), self.exit.at) if at else self.exit.at

    @property
    def lost_worker(self) -> bool:
        """Whether a signal other than SIGKILL ended a data-loader worker of the rank. torch raises a RuntimeError for
        that in whatever the rank is doing; workers that were killed for lack of memory are a failure of their own."""
        if self.hung or self.error is None:
            return False
        in_loader = "torch/utils/data/" in str(self.error.get("traceback"))
        is_cut_off = self.error["type"] in CUT_OFF and in_loader
        return is_cut_off or bool(LOST_WORKER.search(self.error["message"]))

    @property
    def cause(self) -> Cause:
        """Why it ended, for the controller."""
        if self.error and not self.hung:
            nature = nature_of_exception(self.error["type"], self.error["message"])
            if nature in (Nature.LOST_PEER, Nature.TIMED_OUT):
                return Cause(nature.value)
        return Cause.LOST_WORKER if self.lost_worker else Cause.OWN

    def signature(self, step: int | None) -> str:
        """What two failures of one bug have in common: the exception without its numbers, and the last reported step.

        "" where there is no exception of the rank's own, where the step is not known, and where the exception may come
        from outside of the program: a disk, a network, a GPU.
        """
        if step is None or self.hung or not self.leaving or self.error is None or self.cause is not Cause.OWN:
            return ""
        type_, message = self.error["type"], self.error["message"]
        if comes_from_outside(type_, message):
            return ""
        text = " ".join(f"{type_}: {message}".split()).rstrip(": ")
        return f"{without_numbers(text)[:SIGNATURE]} after step {step}"

    @property
    def meaning(self) -> str:
        """`ValueError: bad batch (exit code 1)`, `hung: …`, or the bare meaning of the exit."""
        if self.hung and not self.leaving:
            return f"hung: {self.hung['text']} Ended by Holdfast ({self.exit.end})".replace("\n", " ")
        kept = f"; its process did not end: {self.kept_by}" if self.kept_by else ""
        error = self.error or (UNTOLD if self.has_raised else None)
        if not error:
            return f"{self.exit.meaning}{kept}"
        return f"{error['type']}: {error['message']} ({self.exit.meaning}){kept}".replace("\n", " ")


def in_full(
    found: list[Failure], files: Callable[[RankExit], tuple[str, list[str]]], log_dir: str
) -> list[Failure]:
    """With what the ranks left on disk, if their disk answers.

    Args:
        files: For a rank's exit torch's error file, and the files that may hold its stderr, the best first.
        log_dir: The folder of these files, for the warning that it does not answer.
    """
    try:
        return within(DISK, lambda: [_with_files(each, *files(each.exit)) for each in found])
    except TooLate:
        text = "what the ranks wrote cannot be read: the filesystem of %s has not answered for %g s"
        logger.warning(text, log_dir, DISK)
        return found


def _with_files(failure: Failure, torch_error: str, stderr_files: list[str]) -> Failure:
    """With what the rank left on disk, if no exception was kept. May block forever."""
    if failure.error:
        return failure
    error = _torch_error(torch_error)
    tails = (() if error else last_lines(path) for path in stderr_files if path)
    lines = next(filter(None, tails), ())
    return replace(failure, error=error or (UNTOLD if failure.has_raised else None), last_lines=lines)


def log(ordered: list[Failure], node: str, cycle: int, record: CycleRecord | None, max_restarts: int) -> None:
    """Log the block on these failures of a cycle, the first one first; with its traceback where no restart follows.

    Before a restart one line is enough: the traceback is above it, where the rank printed it.

    Args:
        record: Of the next cycle; None where the node received a stop signal.
    """
    is_last = record is None or record.kind is Kind.END
    lines = block(ordered, node, cycle, whole=is_last)
    if ordered[0].cause is Cause.LOST_PEER:
        lines[0] += ". No rank of this node had failed before"
    if record is not None and record.node != node:  # another node reported first; the line on it follows
        lines[0] = lines[0].replace("FAILED:", "ALSO FAILED:", 1)
    elif record is not None and is_last and not (record.no_progress or record.is_same_failure):
        used = f"{record.restarts} of {max_restarts}"
        lines.append(f"no restart left ({used} used): the job ends with exit code {record.exit_code}")
    console.log_block(lines, logging.ERROR if record is not None and is_last else logging.WARNING)


def block(failures: list[Failure], node: str, cycle: int, *, whole: bool) -> list[str]:
    """The failed cycle in lines: the first to fail, its traceback if `whole`, then who followed."""
    first, *followers = failures
    who = f"rank {first.exit.rank} (node {node}, pid {first.exit.pid}, cycle {cycle})"
    lines = [f"FAILED: {who}: {first.meaning}"]
    if whole and first.error and first.error.get("traceback"):
        lines += ["  " + line for line in first.error["traceback"].rstrip().splitlines()[-LAST_LINES:]]
    elif whole and first.last_lines:
        lines += ["  last lines of its stderr:", *("  | " + line for line in first.last_lines)]
    for other in followers[:8]:
        after = max(0.0, other.began - first.began)
        lines.append(f"  rank {other.exit.rank} followed {after:.2f} s later: {other.meaning}")
    if len(followers) > 8:
        lines.append(f"  and {len(followers) - 8} more ranks followed")
    return lines


def kept(path: str, exit: RankExit) -> dict[str, Any] | None:
    """What the prologue kept, unless it is about another process.

    A shell script as a rank may run several Pythons and continue when one fails, and a program may show an exception
    by ``sys.excepthook`` and continue. Such an exception explains an end that comes soon after it, except an end by a
    signal that the program itself got.
    """
    try:
        with open(path) as file:
            found: dict[str, Any] = json.load(file)
        own, at = found["pid"] == exit.pid, float(found["at"])
        found["type"] = str(found["type"])
        for name in ("message", "traceback"):
            found[name] = _clean(str(found.get(name, "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if own and found.get("unhandled"):
        return found
    return found if 0 <= exit.at - at < SOON and not (own and exit.status < 0) else None


def last_lines(path: str) -> tuple[str, ...]:
    """The last lines in this file, without secrets; none when it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().rstrip(b"\0").decode(errors="replace")
    except (OSError, ValueError):
        return ()
    try:
        from holdfast.incidents.report.redaction import redacted_lines

        return redacted_lines(text.rstrip(), os.environ, LAST_LINES)
    except Exception as error:
        return (_not_shown(error),)


def _torch_error(path: str) -> dict[str, Any] | None:
    """What torch's ``@record`` wrote: {"message": {"message": "Type: text", "extraInfo": {"py_callstack": …}}}."""
    try:
        with open(path) as file:
            message = json.load(file)["message"]
        if isinstance(message, str):
            return {"type": "error", "message": _clean(message), "traceback": ""}
        kind, _, text = _clean(str(message["message"])).partition(": ")
        calls = message["extraInfo"]["py_callstack"]
        whole = "".join(map(str, calls)) if isinstance(calls, list) else str(calls)
        return {"type": kind, "message": text, "traceback": _clean(whole)}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _clean(text: str) -> str:
    """Without the secrets of this environment."""
    try:
        from holdfast.incidents.report.redaction import redacted_text  # slow to import, and rarely needed

        return redacted_text(text, os.environ)
    except Exception as error:  # of the two, the failure has to be reported
        return _not_shown(error)


def _not_shown(error: Exception) -> str:
    return f"(not shown, because secrets could not be taken out of it: {error!r})"
