"""One look at all boards of the node: what is new, who is hung, when to look again.

State that matters is on the boards and the control page; what is kept here (who was told what, who was signalled) may
be lost with the process without harm. A verdict is given twice-checked: after the evidence was taken the board is read
again, the epoch and phase on the control page too, before anyone is signalled. Of several ranks that are late at once
(the others wait for one in a collective) only one is accused, and its end ends the cycle: the one that is late the
longest, unless :mod:`.suspect` finds a better one.
Does not cover: hangs of the launcher itself, and of ranks on other nodes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from ..board import BoardError, BoardReader, Snapshot
from ..processes import proc, sweep
from .control import RUNNING, ControlPage
from .deadlines import Deadline, deadlines, earliest, next_look
from .execution import Executions
from .explain import describe_safely
from .gaps import SECOND, overslept
from .observations import Seen, suspicion_at
from .suspect import whom_it_waits_for

Tell = Callable[[dict[str, Any]], object]
LONGEST_SLEEP = 1.0  # the launcher takes a monitor for dead when its tick stands still for a few of these
NOT_YET = int(0.05 * SECOND)  # until the next look at a rank that the launcher is just starting
MOST_OTHERS = 64  # ranks described beside the hung one
NOBODY_STOPPED = 2.0  # seconds after which one more rank is accused because the cycle goes on regardless


class Watch:
    """The boards of the cycle that runs now."""

    def __init__(
        self, directory: str, epoch: int, check_interval: float, executions: Executions, tell: Tell
    ) -> None:
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
        self._late: list[tuple[Deadline, int, Snapshot]] = []
        self._accused_at = self._accused_until = 0  # meanwhile nobody else is accused who stood still before

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
            wake = min(wake, self._judge_the_latest(now))
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
        self.close_boards()
        self._cycle = cycle
        self._accused_until = 0
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

    def _safely(self, deal_with: Callable[..., int | None], local_rank: int, *about: Any) -> int | None:
        """An error in looking at one rank, or in judging it, must not blind the monitor to the others."""
        try:
            return deal_with(local_rank, *about)
        except Exception as error:
            self._boards.pop(local_rank).close()
            text = f"local rank {local_rank} is no longer watched, the others are: {error!r} (please report this)"
            self._tell({"event": "unreadable", "text": text, "cycle": self._cycle})
            return None

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
            self._late.append((first, local_rank, board))
            return now + self._longest
        wake = next_look(board, self._gaps, now)
        return min(wake, suspicion_at(first)) if seen.suspected_since != first.since_ns else wake

    def _judge_the_latest(self, now: int) -> int:
        """Accuse one of those who are late, if any; returns when to look again."""
        free = [
            late for late in self._late if now >= self._accused_until or late[0].since_ns > self._accused_at
        ]
        for passed, local_rank, board in sorted(free, key=lambda late: late[0].at_ns):
            again = self._safely(self._judge, local_rank, board, passed, now)
            if again is not None:
                return again
        return max(now, self._accused_until) if len(free) < len(self._late) else now + self._longest

    def _judge(self, local_rank: int, board: Snapshot, passed: Deadline, now: int) -> int | None:
        """The limit is passed: gather who is where, make sure, then signal the rank. None if it has ended anyway."""
        if not _runs(board):
            return None
        accused, verdict = self._verdict(local_rank, board, passed, now)
        who = self._boards[accused].snapshot().identity
        assert who is not None
        if not self._still(local_rank, passed, now):
            return now
        # Told before it is done, so that the launcher can explain the exit that follows.
        self._tell(verdict)
        self._accused_at = now
        self._accused_until = now + int((self._executions.patience + NOBODY_STOPPED) * SECOND)
        sent = self._executions.begin(who, now)
        if sent:
            told = {"event": "signal_sent", "rank": who.rank, "pid": who.pid, "signal": sent, "by": "monitor"}
            self._tell({**told, "cycle": self._cycle})
        return now + self._longest

    def _still(self, local_rank: int, passed: Deadline, now: int) -> bool:
        """Asked last before acting: the same limit is passed, we are in charge, and nothing stood still meanwhile."""
        again = earliest(deadlines(self._boards[local_rank].snapshot(), self._gaps))
        frozen = overslept(now, time.monotonic_ns())
        return again == passed and not frozen and not self.superseded and self._control.phase == RUNNING

    def _verdict(
        self, local_rank: int, board: Snapshot, passed: Deadline, now: int
    ) -> tuple[int, dict[str, Any]]:
        """On the late rank, or on the one that it plainly waits for; with whose board it is."""
        late, text, accused = describe_safely(board, now), passed.text(now), local_rank
        ranks = {**self._others(local_rank, now), local_rank: late}
        candidates = {key: ranks[key] for key in ranks if key != local_rank and self._may_be_accused(key)}
        if waits_for := whom_it_waits_for(late, passed.waited(now), candidates):
            accused, text = waits_for[0], f"Rank {late['rank']}: {text} {waits_for[1]}."
        return accused, {
            "event": "verdict",
            "at": now / SECOND,
            "reason": passed.reason,
            "section": passed.section,
            "waited": round(passed.waited(now), 3),
            "limit": passed.limit,
            "text": text,
            "signal": self._executions.name,
            **ranks[accused],
            "others": [ranks[key] for key in sorted(ranks) if key != accused][:MOST_OTHERS],
        }

    def _others(self, local_rank: int, now: int) -> dict[int, dict[str, Any]]:
        """The neighbours are evidence: one that cannot be read must not save the rank that is hung."""
        found: dict[int, dict[str, Any]] = {}
        for key, other in self._boards.items():
            if key != local_rank:
                with contextlib.suppress(Exception):
                    board = other.snapshot()
                    if board.identity:
                        found[key] = describe_safely(board, now)
        return found

    def _may_be_accused(self, local_rank: int) -> bool:
        board = self._boards[local_rank].snapshot()
        return _runs(board) and board.identity is not None and not self._executions.knows(board.identity)

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


def _runs(board: Snapshot) -> bool:
    """Whether the rank's process is still the one that was started, and is not ending."""
    who = board.identity
    return (
        who is not None and proc.start_time(who.pid) == who.start_time and not sweep.ends(proc.stat(who.pid))
    )
