"""One scan of all boards of the node: what is new, which ranks are overdue, when to scan again.

State that matters is on the boards and the control page; what is kept here (what was reported, who was signalled) may
be lost with the process without harm. What is done about an overdue rank is in :mod:`.hang_handler`.
Does not cover: hangs of the launcher itself, and of ranks on other nodes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..board import BoardError, BoardReader, Identity
from ..processes.kill import send_verified
from .control import RUNNING, ControlPage, Settings
from .deadlines import (
    SECOND,
    Deadline,
    Milestones,
    deadlines,
    earliest,
    next_scan,
    suspicion_at,
    was_suspended,
)
from .hang_handler import EARLY, HangHandler, Overdue, Send

if TYPE_CHECKING:
    from holdfast.incidents.early import Sign

LONGEST_SLEEP = 1.0  # the launcher takes a monitor for dead when its tick does not move for a few of these
NOT_YET = int(0.05 * SECOND)  # until the next scan of a rank that the launcher is just starting
REOPEN = 2 * SECOND  # until the next try with boards that could not be opened
UNTIL_ACTED_ON = "TZ"  # states in which a rank stays until another process acts


class Watch:
    """The boards of the cycle that runs now; `send` takes each message for the launcher."""

    def __init__(self, settings: Settings, send: Send) -> None:
        self._settings = settings
        self._control = ControlPage(settings.directory)
        self._longest = int(min(settings.check_interval, LONGEST_SLEEP) * SECOND)
        self._terminator = Terminator(settings.termination, settings.grace)
        self._send = send
        self._cycle = -1
        self._boards: dict[int, BoardReader] = {}
        self._unopened: set[str] | None = None  # names of boards that are not open yet; None: not listed yet
        self._reopen_ns = 0
        self._milestones: dict[int, Milestones] = {}
        self._suspensions = self._control.suspensions
        self._early: EarlyWatch | None = None
        self._handler = HangHandler(settings, self._boards, self._terminator, send, self._may_act, self._drop)

    @property
    def is_superseded(self) -> bool:
        """Whether the launcher has put another monitor in charge."""
        return self._control.epoch != self._settings.epoch

    def scan(self) -> float:
        """Scan the boards and act; returns how many seconds may pass before the next scan."""
        now = time.monotonic_ns()
        self._notice_suspension(now)
        wake = now + self._longest
        self._kill_expired(now)
        if self._control.phase == RUNNING:
            self._open_boards()
            overdue: list[Overdue] = []
            for local_rank in list(self._boards):
                try:
                    wake = min(wake, self._scan_rank(local_rank, now, overdue))
                except Exception as error:
                    self._drop(local_rank, error)
            wake = min(wake, self._scan_early(now, overdue) or wake)
            wake = min(wake, self._handler.advance(overdue, self._suspensions, now) or wake)
        else:
            wake = min(wake, self._handler.finish_capture(now) or wake)
        if self._terminator.next_ns is not None:
            wake = min(wake, self._terminator.next_ns)
        if not self.is_superseded:
            self._control.record_scan(now, wake)
        return max(0.0, (wake - time.monotonic_ns()) / SECOND)

    def _notice_suspension(self, now: int) -> None:
        """A scan far too late, by this monitor or since its predecessor's last: the node was suspended meanwhile."""
        scanned, planned = self._control.last_scan
        if was_suspended(planned, now) and not self.is_superseded:
            self._control.add_suspension(scanned, now)
            self._suspensions = self._control.suspensions
            self._terminator.extend(now - scanned)
            self._send({"event": "gap", "seconds": round((now - scanned) / SECOND, 3)})

    def _open_boards(self) -> None:
        """Open those of this cycle. One that fails, such as for lack of descriptors, is reported and tried again."""
        cycle, now = self._control.cycle, time.monotonic_ns()
        is_new = cycle != self._cycle
        if is_new:
            self._begin_cycle(cycle)
        elif self._unopened == set() or now < self._reopen_ns:
            return
        self._reopen_ns = now + int(REOPEN)
        folder = os.path.join(self._settings.directory, f"cycle-{cycle}")
        is_listed = self._unopened is not None
        if self._unopened is None:
            try:
                self._unopened = {name for name in os.listdir(folder) if name.endswith(".board")}
            except OSError as error:
                if is_new:
                    self._report_unreadable(f"cycle {cycle} is not watched: {error}")
                return
        for name in sorted(self._unopened):
            try:
                local_rank = int(name.removesuffix(".board"))
                self._boards[local_rank] = BoardReader(os.path.join(folder, name))
                self._milestones[local_rank] = Milestones()
                self._unopened.remove(name)
            except (BoardError, ValueError) as error:
                if not is_listed:
                    self._report_unreadable(f"this rank is not watched, the others are: {error}")

    def _begin_cycle(self, cycle: int) -> None:
        self._close_boards()
        self._cycle, self._unopened = cycle, None
        if self._settings.early_detection:
            self._early = EarlyWatch(self._settings.launcher_pid)
        self._handler.begin_cycle(cycle, self._early)
        self._terminator.reset()

    def _may_act(self) -> bool:
        return not self.is_superseded and self._control.phase == RUNNING

    def _drop(self, local_rank: int, error: Exception) -> None:
        """An error about one rank must not end the supervision of the others."""
        if (board := self._boards.pop(local_rank, None)) is not None:
            board.close()
        self._report_unreadable(
            f"local rank {local_rank} is no longer watched, the others are: {error!r} (please report this)"
        )

    def _report_unreadable(self, text: str) -> None:
        self._send({"event": "unreadable", "text": text, "cycle": self._cycle})

    def _scan_rank(self, local_rank: int, now: int, overdue: list[Overdue]) -> int:
        """Report milestones, add an overdue rank to `overdue`; returns when to scan this rank again (monotonic
        nanoseconds)."""
        board = self._boards[local_rank].snapshot()
        if board.identity is None or board.identity.cycle != self._cycle:
            return now + NOT_YET
        milestones = self._milestones[local_rank]
        first = earliest(deadlines(board, self._suspensions, self._settings.warm_up))
        who = {"rank": board.identity.rank, "pid": board.identity.pid, "cycle": self._cycle}
        for news in milestones.poll(board, self._boards[local_rank].events):
            self._send({**who, **news})
        for news in milestones.suspicion(first, now):
            self._send({**who, **news})
        if first is None or self._terminator.has_signalled(board.identity):
            return now + self._longest
        if now >= first.at_ns:
            overdue.append(Overdue(first, local_rank, board.identity, board))
            return now + self._longest
        wake = next_scan(board, self._suspensions, now, self._settings.warm_up)
        return min(wake, suspicion_at(first)) if milestones.suspected_since != first.since_ns else wake

    def _scan_early(self, now: int, overdue: list[Overdue]) -> int | None:
        """Signs before a limit is passed; an error in it ends early detection, and no more."""
        if self._early is None:
            return None
        try:
            wake = self._early.scan(now, self._boards)
            if not overdue and (found := self._early.overdue(self._boards)):
                if not self._terminator.has_signalled(found.who):
                    overdue.append(found)
            return wake
        except Exception as error:
            self._early = None
            text = f"early detection has ended, limits still hold: {error!r} (please report this)"
            self._report_unreadable(text)
            return None

    def _kill_expired(self, now: int) -> None:
        if self._terminator.next_ns is None or self.is_superseded:
            return
        for who in self._terminator.kill_expired(now):
            message = {"event": "escalated", "rank": who.rank, "pid": who.pid, "signal": "SIGKILL"}
            self._send({**message, "cycle": who.cycle})

    def identities(self) -> dict[int, int]:
        """Pid -> start time of the ranks on the boards of this cycle."""
        self._open_boards()
        identities = (board.snapshot().identity for board in self._boards.values())
        return {who.pid: who.start_time for who in identities if who}

    def close(self) -> None:
        self._close_boards()
        self._control.close()

    def _close_boards(self) -> None:
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        self._milestones.clear()


class EarlyWatch:
    """Early detection in one cycle, only where the user asked for it: samples, and a sign as an overdue rank.

    What is sampled, and what follows from it, is in :mod:`holdfast.incidents.early`.
    Does not cover: what that module does not cover.
    """

    def __init__(self, launcher_pid: int) -> None:
        from holdfast.incidents.early import EarlyDetection  # most monitors run without

        self._launcher = launcher_pid
        self._detection = EarlyDetection()
        self._sign: Sign | None = None

    def scan(self, now: int, boards: Mapping[int, BoardReader]) -> int:
        """Take samples when it is time; returns when to scan again (monotonic nanoseconds)."""
        from holdfast.incidents.early import sample, state

        if now / SECOND >= self._detection.next_sample:
            ranks = {}
            for key, reader in boards.items():
                wants_threads = key in self._detection.wants_threads
                if found := sample(reader.snapshot(), now, threads=wants_threads):
                    ranks[key] = found
            stopped = state(self._launcher) in "Tt"
            self._sign = self._detection.observe(now / SECOND, ranks, launcher_stopped=stopped)
        return int(self._detection.next_sample * SECOND)

    def overdue(self, boards: Mapping[int, BoardReader]) -> Overdue | None:
        """The rank that a sign is about, as an overdue one."""
        sign = self._sign
        if sign is None or sign.local_rank not in boards:
            return None
        board, since = boards[sign.local_rank].snapshot(), int(sign.since * SECOND)
        if board.identity is None:
            return None
        passed = Deadline(since, since, 0.0, EARLY, sentence=sign.text)
        return Overdue(passed, sign.local_rank, board.identity, board)

    def still_confirmed(self, overdue: Overdue) -> bool:
        """Whether the sign still holds, checked last before the rank is signalled."""
        from holdfast.incidents.early import state

        sign = self._sign
        same = sign is not None and sign.local_rank == overdue.local_rank
        if same and state(overdue.who.pid) in UNTIL_ACTED_ON:
            return True
        self._sign = None  # or the next scan would take it for a new one
        return False


class Terminator:
    """The end of hung ranks: SIGCONT, the configured signal, SIGKILL after the grace period.

    The process is checked by pid and start time behind a pidfd before each signal. One that was signalled is remembered
    until the next cycle, so it gets each signal once.
    Does not cover: a process that even SIGKILL cannot end (uninterruptible sleep); the launcher reports that one.
    """

    def __init__(self, termination: int, grace: float) -> None:
        """`termination` is the first signal, `grace` the seconds between it and SIGKILL."""
        self.termination, self.grace = termination, grace
        self._pending: dict[Identity, int] = {}  # when SIGKILL follows, in monotonic nanoseconds
        self._done: set[Identity] = set()

    @property
    def signal_name(self) -> str:
        return signal.Signals(self.termination).name

    def has_signalled(self, who: Identity) -> bool:
        return who in self._pending or who in self._done

    def terminate(self, who: Identity, now_ns: int) -> str | None:
        """Send the first signal; its name, or None when the process is not the one meant or is gone."""
        if self.termination == signal.SIGKILL:
            self._done.add(who)
        else:
            self._pending[who] = now_ns + int(self.grace * SECOND)
            # A stopped process acts on a signal only when it continues (SIGKILL needs no such help).
            send_verified(who.pid, who.start_time, signal.SIGCONT)
        sent = send_verified(who.pid, who.start_time, self.termination)
        return self.signal_name if sent else None

    def kill_expired(self, now_ns: int) -> list[Identity]:
        """SIGKILL for each rank whose grace period is over; returns those that still existed."""
        due = [who for who, at in self._pending.items() if at <= now_ns]
        for who in due:
            del self._pending[who]
            self._done.add(who)
        return [who for who in due if send_verified(who.pid, who.start_time, signal.SIGKILL)]

    def extend(self, by_ns: int) -> None:
        """The node was suspended: a grace period is time in which a rank could have ended."""
        self._pending = {who: at + by_ns for who, at in self._pending.items()}

    @property
    def next_ns(self) -> int | None:
        """When the next SIGKILL is due."""
        return min(self._pending.values(), default=None)

    def reset(self) -> None:
        """A new cycle: its ranks are other processes."""
        self._pending.clear()
        self._done.clear()
