"""Why a rank failed, from what it left behind: the kept exception, torch's error file, its last stderr lines.

What always holds: secrets of the environment are taken out of these texts where they are read.
Does not cover: what native code, children and programs that are no Python write to stderr, where it goes straight to
the launcher's (no ``--tee``, no ``--redirects``); it stands above the launcher's own lines.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from typing import Any

from holdfast.journal.lost_connection import lost_connection

from ..control.messages import Cause
from .exits import RankExit
from .last_words import last_lines

LAST_LINES = 20
SOON = 5.0  # seconds
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


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's end with what is known of the cause; `error` has type, message, traceback and at, or is None.

    `hung` is the monitor's verdict on a rank that was ended for a hang: whatever it did then, that was the cause.
    """

    exit: RankExit
    error: dict[str, Any] | None
    last_lines: tuple[str, ...] = ()
    hung: dict[str, Any] | None = None

    @property
    def raised(self) -> bool:
        """Whether an exception of the rank's own process is known, not one of a program that a shell script ran."""
        return self.error is not None and self.error.get("pid") == self.exit.pid

    @property
    def leaving(self) -> bool:
        """Whether that exception ends the process: it was not merely shown by the program."""
        return self.raised and self.error is not None and bool(self.error.get("unhandled"))

    @property
    def began(self) -> float:
        """When it began to fail (monotonic seconds): the verdict's or the exception's moment, else the exit's."""
        at = self.hung.get("at") if self.hung else self.error.get("at") if self.error else None
        return min(float(at), self.exit.at) if at else self.exit.at

    @property
    def lost_connection(self) -> bool:
        """Whether all that is known is that a peer was gone."""
        return not self.hung and lost_connection(self.error)

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
        if self.lost_connection:
            return Cause.LOST_PEER
        return Cause.LOST_WORKER if self.lost_worker else Cause.OWN

    @property
    def meaning(self) -> str:
        """`ValueError: bad batch (exit code 1)`, `hung: …`, or the bare meaning of the exit."""
        if self.hung:
            return f"hung: {self.hung['text']} Ended by Holdfast ({self.exit.end})".replace("\n", " ")
        if not self.error:
            return self.exit.meaning
        return f"{self.error['type']}: {self.error['message']} ({self.exit.meaning})".replace("\n", " ")


def at_hand(exit: RankExit, kept_error: str, verdict: dict[str, Any] | None = None) -> Failure:
    """What is known at once: the kept exception, which is in memory. The path may name nothing."""
    return Failure(exit, kept(kept_error, exit), hung=verdict)


def in_full(failure: Failure, torch_error: str, *stderr_files: str) -> Failure:
    """With what rank `failure.exit.rank` left on disk, if no exception was kept; of the files that hold its stderr,
    the first that has any. May wait for the disk for ever."""
    if failure.error:
        return failure
    error = _torch_error(torch_error)
    tails = (() if error else last_lines(path, failure.exit.pid) for path in stderr_files if path)
    lines = tuple(_clean(line) for line in next(filter(None, tails), ()))
    return replace(failure, error=error, last_lines=lines)


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

    A shell script as a rank may run several Pythons and go on when one fails, and a program may show an exception by
    ``sys.excepthook`` and go on: such a one explains the end if that comes soon after it. Not an end by a signal that
    the program itself got: what it showed has little to do with it.
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
    except Exception as error:  # of the two, the failure is what has to be told
        return f"(not shown, because secrets could not be taken out of it: {error!r})"
