"""One look at all boards of the node: what is new, who is late, when to look again.

State that matters is on the boards and the control page; what is kept here (who was told what, who was signalled) may
be lost with the process without harm. What is done about a rank that is late is in :mod:`.judgement`.
Does not cover: hangs of the launcher itself, and of ranks on other nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..board import BoardError, BoardReader
from .control import RUNNING, ControlPage
from .deadlines import deadlines, earliest, next_look
from .execution import Executions
from .gaps import SECOND, overslept
from .judgement import Judgement, Late, Tell
from .observations import Seen, suspicion_at

if TYPE_CHECKING:
    from .early_watch import EarlyWatch

LONGEST_SLEEP = 1.0  # the launcher takes a monitor for dead when its tick stands still for a few of these
NOT_YET = int(0.05 * SECOND)  # until the next look at a rank that the launcher is just starting


class Watch:
    """The boards of the cycle that runs now."""

    def __init__(
        self,
        directory: str,
        epoch: int,
        check_interval: float,
        executions: Executions,
        tell: Tell,
        early_for: int = 0,
    ) -> None:
        """`early_for` is the launcher's pid where early detection is wanted."""
        self._directory = directory
        self._control = ControlPage(directory)
        self._epoch = epoch
        self._longest = int(min(check_interval, LONGEST_SLEEP) * SECOND)
        self._executions = executions
        self._tell = tell
        self._cycle = -1
        self._boards: dict[int, BoardReader] = {}
        self._seen: dict[int, Seen] = {}
        self._gaps = self._control.gaps
        self._late: list[Late] = []
        self._early_for = early_for
        self._early: EarlyWatch | None = None
        self._judgement = self._judgement_of(-1)

    @property
    def superseded(self) -> bool:
        """Whether the launcher has put another monitor in charge."""
        return self._control.epoch != self._epoch

    def look(self) -> float:
        """Look, act, and say how many seconds may pass before the next look."""
        now = time.monotonic_ns()
        self._notice_gap(now)
        wake = now + self._longest
        self._escalate(now)
        if self._control.phase == RUNNING:
            self._open_boards()
            self._late.clear()
            for local_rank in list(self._boards):
                wake = min(wake, self._safely(self._look_at, local_rank, now) or wake)
            wake = min(wake, self._look_early(now) or wake)
            wake = min(wake, self._judgement.proceed(self._late, self._gaps, now) or wake)
        else:
            wake = min(wake, self._judgement.hand_over(now) or wake)
        if self._executions.next_ns is not None:
            wake = min(wake, self._executions.next_ns)
        if not self.superseded:
            self._control.beat(now, wake)
        return max(0.0, (wake - time.monotonic_ns()) / SECOND)

    def _notice_gap(self, now: int) -> None:
        """A look far too late, by this monitor or since its predecessor's last: the world stood still meanwhile."""
        looked, planned = self._control.looked
        if overslept(planned, now) and not self.superseded:
            self._control.add_gap(looked, now)
            self._gaps = self._control.gaps
            self._executions.postpone(now - looked)
            self._tell({"event": "gap", "seconds": round((now - looked) / SECOND, 3)})

    def _open_boards(self) -> None:
        cycle = self._control.cycle
        if cycle == self._cycle:
            return
        self._judgement.abandon()
        self.close_boards()
        self._cycle = cycle
        self._judgement = self._judgement_of(cycle)
        self._early = self._early_watch()
        self._executions.forget()
        folder = os.path.join(self._directory, f"cycle-{cycle}")
        try:
            names = os.listdir(folder)
        except OSError as error:
            self._tell(
                {"event": "unreadable", "text": f"cycle {cycle} is not watched: {error}", "cycle": cycle}
            )
            return
        for name in sorted(names):
            if name.endswith(".board"):
                self._open_board(os.path.join(folder, name))

    def _open_board(self, path: str) -> None:
        try:
            local_rank = int(os.path.basename(path).removesuffix(".board"))
            self._boards[local_rank] = BoardReader(path)
            self._seen[local_rank] = Seen()
        except (BoardError, ValueError) as error:
            text = f"this rank is not watched, the others are: {error}"
            self._tell({"event": "unreadable", "text": text, "cycle": self._cycle})

    def _early_watch(self) -> EarlyWatch | None:
        if not self._early_for:
            return None
        from .early_watch import EarlyWatch  # most monitors do without

        return EarlyWatch(self._early_for, lambda told: self._tell({**told, "cycle": self._cycle}))

    def _look_early(self, now: int) -> int | None:
        """Signs before a limit is passed; an error there costs them, nothing else."""
        if self._early is None:
            return None
        try:
            wake = self._early.look(now, self._boards)
            if not self._late and (late := self._early.late(self._boards)):
                if late.board.identity and not self._executions.knows(late.board.identity):
                    self._late.append(late)
            return wake
        except Exception as error:
            self._early = None
            text = f"early detection has ended, limits still hold: {error!r} (please report this)"
            self._tell({"event": "unreadable", "text": text, "cycle": self._cycle})
            return None

    def _judgement_of(self, cycle: int) -> Judgement:
        return Judgement(
            self._directory,
            cycle,
            self._boards,
            self._executions,
            self._tell,
            may_act=lambda: not self.superseded and self._control.phase == RUNNING,
            early_holds=lambda late: self._early is not None and self._early.holds(late),
            give_up=self._give_up,
        )

    def _safely(self, deal_with: Callable[..., int | None], local_rank: int, *about: Any) -> int | None:
        """An error in looking at one rank must not blind the monitor to the others."""
        try:
            return deal_with(local_rank, *about)
        except Exception as error:
            self._give_up(local_rank, error)
            return None

    def _give_up(self, local_rank: int, error: Exception) -> None:
        if (board := self._boards.pop(local_rank, None)) is not None:
            board.close()
        text = f"local rank {local_rank} is no longer watched, the others are: {error!r} (please report this)"
        self._tell({"event": "unreadable", "text": text, "cycle": self._cycle})

    def _look_at(self, local_rank: int, now: int) -> int:
        """Tell the news, note who is late; returns when to look at this rank again (monotonic nanoseconds)."""
        board = self._boards[local_rank].snapshot()
        if board.identity is None or board.identity.cycle != self._cycle:
            return now + NOT_YET
        seen = self._seen[local_rank]
        first = earliest(deadlines(board, self._gaps))
        for news in (*seen.news(board, self._boards[local_rank].events), *seen.suspicion(first, now)):
            self._tell({"rank": board.identity.rank, "pid": board.identity.pid, "cycle": self._cycle, **news})
        if first is None or self._executions.knows(board.identity):
            return now + self._longest
        if now >= first.at_ns:
            self._late.append(Late(first, local_rank, board))
            return now + self._longest
        wake = next_look(board, self._gaps, now)
        return min(wake, suspicion_at(first)) if seen.suspected_since != first.since_ns else wake

    def _escalate(self, now: int) -> None:
        if self._executions.next_ns is None or self.superseded:
            return
        for who in self._executions.escalate(now):
            told = {"event": "escalated", "rank": who.rank, "pid": who.pid, "signal": "SIGKILL"}
            self._tell({**told, "cycle": who.cycle})

    def identities(self) -> dict[int, int]:
        """Pid -> start time of the ranks on the boards of this cycle."""
        self._open_boards()
        known = (board.snapshot().identity for board in self._boards.values())
        return {who.pid: who.start_time for who in known if who}

    def close_boards(self) -> None:
        """Unmap the boards of the cycle that is over."""
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        self._seen.clear()

    def close(self) -> None:
        """Unmap everything."""
        self.close_boards()
        self._control.close()
