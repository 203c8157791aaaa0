"""What the ranks of a cycle did, as the monitor and their boards report it: into the journal, the log, and as events.

The monitor reports a verdict before it signals a rank, so a message that arrived before an exit explains it. A board
outlives its rank: what the monitor had no time to report is read from there.
Does not cover: what follows from it; the controller decides that.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.journal.writer import Journal

from ..board import Snapshot
from ..monitor.deadlines import MILESTONES, SECOND
from . import console
from .console import best_effort
from .control import messages as m
from .exit_codes import RankExit, obeyed
from .incidents import Incidents
from .ranks import failures
from .ranks.boards import CycleBoards
from .ranks.failures import Failure
from .ranks.processes import RankGroup

UNHANDLED = 1
"""The exit code of a Python process that an exception ended."""


class RankReports:
    """The reports of one cycle after the other on this node."""

    def __init__(self, node: str, boards: CycleBoards, journal: Journal, incidents: Incidents) -> None:
        self._node, self._boards, self._journal, self._incidents = node, boards, journal, incidents
        self._cycle = -1
        self._verdicts: dict[int, dict[str, Any]] = {}  # the monitor's on hangs, by local rank
        self._reported: set[tuple[str, int]] = set()  # milestones and global ranks
        self._failing: dict[int, Failure] = {}  # by local rank, before the rank has ended
        self._ended: dict[int, Failure] = {}  # by local rank
        self._kept_by: dict[int, str] = {}  # by local rank
        self._requested: set[tuple[int, str]] = set()  # global ranks and actions
        self._down_since: float | None = None  # monotonic seconds

    def begin_cycle(self, cycle: int) -> None:
        """The ranks of this cycle start."""
        self._cycle = cycle
        for kept in (self._verdicts, self._failing, self._ended, self._kept_by):
            kept.clear()
        self._reported.clear()
        self._requested.clear()

    @property
    def has_first_signs(self) -> bool:
        """Whether a rank has begun to train, as far as it reports that."""
        return any(kind != "rank_connect" for kind, _ in self._reported)

    def has_verdict(self, rank: int) -> bool:
        """Whether the monitor has a verdict on this global rank, and signals it."""
        return any(verdict["rank"] == rank for verdict in self._verdicts.values())

    def mark_down(self) -> None:
        """The ranks fail or are being stopped: the time until they train again counts from here."""
        if self._down_since is None:
            self._down_since = time.monotonic()

    # -- the monitor ------------------------------------------------------------------------------------------

    def take(self, message: dict[str, Any]) -> m.Event | None:
        """A message of the monitor. Returns what it means to the controller."""
        kind = message.pop("event")
        is_late = message.get("cycle", self._cycle) != self._cycle
        if kind in ("capture", "evidence"):
            self._journal.record(kind, cycle=message["cycle"])
            return self._incidents.take_capture(message.get("evidence"), is_late=is_late)
        if kind == "verdict":
            with best_effort("the evidence of a hang", self._journal.record):
                self._incidents.take_verdict(message, is_late=is_late)
        if is_late:
            if kind not in MILESTONES:  # the final scan has reported those
                self._journal.record(kind, **message)
            return None
        return self._take(kind, message)

    def _take(self, kind: str, message: dict[str, Any]) -> m.Event | None:
        if kind in MILESTONES:
            if (kind, message["rank"]) in self._reported:
                return None  # a new monitor reports it again
            self._reported.add((kind, message["rank"]))
            with best_effort("the report of a restart", self._journal.record):
                self._resume(kind, message)
        elif kind == "recovered":
            console.logger.warning("%s", console.recovered(self._node, message))
        elif kind == "overdue":
            verdict = self._verdicts.get(int(message["local_rank"]))
            if verdict is None or verdict["overdue_rank"] != message["rank"]:  # else the log has it already
                console.logger.warning("%s", console.overdue(self._node, message))
        elif kind == "unreadable":
            console.logger.warning("%s", message["text"])
        self._journal.record(kind, **message)
        if kind == "request" and message["action"] != "continue":
            return self._request(message["rank"], message["action"], message["description"])
        if kind != "verdict":
            return None
        local = int(message["local_rank"])
        self._verdicts[local] = message
        with best_effort("the report of a hang", self._journal.record):
            console.log_block(console.hang(self._node, message))
        end = RankExit(message["rank"], local, message["pid"], -signal.SIGKILL, time.monotonic())
        return m.Verdict(local, self.failure(end).meaning)

    def _request(self, rank: int, action: str, description: str) -> m.Event | None:
        if (rank, action) in self._requested:
            return None
        self._requested.add((rank, action))
        return m.Requested(rank, action, description)

    def _resume(self, kind: str, message: dict[str, Any]) -> None:
        """Log once when a restarted job trains again, with the step if there is one."""
        if self._down_since is None or kind in ("rank_connect", "first_section"):
            return
        if float(message["at"]) < self._down_since:
            return  # of a rank that is being stopped
        seconds, self._down_since = round(float(message["at"]) - self._down_since, 3), None
        # A counted step is the process's own, the first one always 1.
        has_step = "step" in message and not message.get("counted")
        what = f"step {message['step']}" if has_step else "training"
        console.logger.warning("%s resumed %.1f s after the ranks were stopped", what, seconds)
        self._journal.record("resume", cycle=message["cycle"], rank=message["rank"], seconds=seconds)

    # -- the boards -------------------------------------------------------------------------------------------

    def final_scan(self, local: int, rank: int, pid: int) -> None:
        """A rank has ended: report the milestones that the monitor had no time to report."""
        with best_effort("the final scan of a board", self._journal.record):
            for news in self._boards.news(local):
                if news["event"] in MILESTONES:
                    self._take(news.pop("event"), {"rank": rank, "pid": pid, "cycle": self._cycle, **news})

    def requests(self, boards: dict[int, Snapshot]) -> Iterator[m.Event]:
        """A request counts also where its rank ended before the monitor could report it."""
        for board in boards.values():
            if board.request and board.request.action != "continue":
                rank = board.identity.rank if board.identity else -1
                if event := self._request(rank, board.request.action, board.request.description):
                    yield event

    # -- failures ---------------------------------------------------------------------------------------------

    def failure(self, found: RankExit) -> Failure:
        """Why a rank has ended, as far as its board and the monitor show; no disk is read."""
        local = found.local_rank
        error = failures.kept(self._boards.path(local, "error"), found)
        return Failure(found, error, hung=self._verdicts.get(local), kept_by=self._kept_by.get(local, ""))

    def uncaught(self, group: RankGroup) -> Iterator[m.RankFailing]:
        """The ranks that still run although an uncaught exception has ended their main thread: each once."""
        now, boards = time.monotonic(), self._boards.snapshots()
        for local, pid in group.running.items():
            is_marked = local in boards and boards[local].main_raised
            at = boards[local].main_ended_ns / SECOND if is_marked else now
            found = self.failure(RankExit(group.rank_of(local), local, pid, UNHANDLED, at))
            found = replace(found, has_raised=is_marked)
            if local in self._failing or not (is_marked or found.leaving):
                continue
            self._failing[local] = found
            rank = {"rank": found.exit.rank, "pid": pid}
            self._journal.record("rank_failing", cycle=self._cycle, **rank, error=found.error)
            text = found.meaning.removesuffix(f" ({found.exit.meaning})").rstrip(": ")
            failure = found.signature(_reported_step(boards.get(local)))
            yield m.RankFailing(local, found.cause, text, now - found.began, failure)

    def describe(self, found: m.ExitDescribed) -> None:
        """What keeps the process of a rank whose main thread has ended."""
        if found.cycle == self._cycle:
            self._kept_by[found.local] = found.kept_by

    def ended(self, found: RankExit) -> Failure:
        """What is known of a rank that has ended."""
        return self._ended.get(found.local_rank) or self.failure(found)

    def exited(self, found: RankExit, signalled: int, now: float) -> m.RankExited:
        """A rank has ended, into the journal; `signalled` is the signal by which the launcher stopped it, or 0."""
        was_stopped = bool(signalled) and (found.patience is not None or obeyed(found, signalled))
        found = replace(found, by_launcher=was_stopped)
        board = self._boards.snapshots().get(found.local_rank)
        failure = replace(self.failure(found), has_raised=board is not None and board.main_raised)
        error = failure.error if found.status and not was_stopped else None
        if was_stopped and found.local_rank in self._failing:
            kept_by = self._kept_by.get(found.local_rank, "")
            failure = replace(self._failing[found.local_rank], kept_by=kept_by)  # its exception was ending it
        elif was_stopped and not failure.leaving and not failure.hung:
            failure = Failure(found, None)  # an exception that was shown before does not explain this end
        self._ended[found.local_rank] = failure
        self._journal.record(
            "rank_exit",
            cycle=self._cycle,
            rank=found.rank,
            pid=found.pid,
            exitcode=found.status if found.status >= 0 else None,
            signal=found.signal_name,
            meaning="stopped by the launcher" if was_stopped else found.meaning,
            **({"error": error} if error else {}),
        )
        local, ago = found.local_rank, now - failure.began
        signature = failure.signature(_reported_step(board))
        return m.RankExited(
            local, found.status, failure.cause, failure.meaning, ago, failure.leaving, signature
        )


def _reported_step(board: Snapshot | None) -> int | None:
    """The last step that the program has reported. A counted step is not comparable between cycles."""
    return None if board is None or board.counted else board.step
