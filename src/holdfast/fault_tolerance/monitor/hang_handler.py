"""From overdue ranks to the one that is signalled: evidence, verdict, a last check, the signal.

Of several ranks that are overdue at once (the others wait for one in a collective) only one is accused, and its end
ends the cycle. It is the one that the verdict names, if that is more than a guess, else the one that has been overdue
the longest. Before a rank is signalled its board is read again, and the epoch and phase on the control page too.

Evidence on all local ranks is captured in a thread that the monitor never waits for. It is over after `LONGEST`
seconds, whatever the ranks do. Where no thread can be started the hung rank is ended without evidence.

Does not cover: a culprit on another node; the accused is then a rank of this node that waits for it, and the report
that joins all nodes names it. A capture that hangs in the kernel: its thread is left behind, and its result is not
used. Without evidence: ranks at the same step of which none is stopped (the one whose limit was passed first is
accused), and busy loops.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.in_time import TooLate, UnderWay
from holdfast.incidents.capture.context import NodeContext, Trigger

from ..board import BoardReader, Identity, Snapshot
from ..processes import proc
from .control import Settings
from .deadlines import SECOND, Deadline, Suspensions, deadlines, earliest, was_suspended

if TYPE_CHECKING:
    from holdfast.incidents.evidence import PassedLimit
    from holdfast.incidents.verdict import Verdict

    from .watch import EarlyWatch, Terminator

Send = Callable[[dict[str, Any]], object]
# Triggers of the evidence; as the reason of a `Deadline` EARLY means that no limit was passed.
HANG, EARLY = "hang", "early"
MOST_OTHERS = 64  # ranks described besides the hung one
CYCLE_GOES_ON = 2.0  # seconds after the grace period; then another rank is accused: the cycle did not end

LONGEST = 2.0  # seconds after which the rank is ended with the evidence found by then
FOR_VERDICT = 0.3  # seconds of it that are left for the verdict and for writing
POLL = int(0.005 * SECOND)  # between two polls of a capture


@dataclass(frozen=True, slots=True)
class Overdue:
    """A rank that has passed a limit, as it was scanned then."""

    passed: Deadline
    local_rank: int
    who: Identity
    board: Snapshot

    @property
    def is_early(self) -> bool:
        """Whether there is a sign of a hang before a limit is passed."""
        return self.passed.reason == EARLY


@dataclass(frozen=True, slots=True)
class Captured:
    """The verdict, and the file with its evidence. Empty where the capture failed."""

    verdict: Verdict | None = None
    ready: float = 0.0
    """When the evidence was complete, monotonic seconds."""
    file: str = ""


class EvidenceCapture:
    """A capture of the evidence on all local ranks, in a thread of its own once it was started."""

    def __init__(self, directory: str, cycle: int, now_ns: int) -> None:
        self._directory, self._cycle = directory, cycle
        self._until_ns = now_ns + int(LONGEST * SECOND)
        self._is_abandoned = False
        self._call: UnderWay[Captured] | None = None

    def start(self, ranks: Mapping[int, Identity], trigger: Trigger) -> None:
        """Capture these ranks (by local rank). RuntimeError if no thread can be started."""
        self._call = UnderWay(lambda: self._capture(ranks, trigger))

    def result(self, now_ns: int) -> Captured | None:
        """The result; None while the capture is under way."""
        if self._call is None:
            return Captured()
        try:
            return self._call.answer(0.0)
        except TooLate:
            if now_ns < self._until_ns:
                return None
            self._is_abandoned = True
            return Captured()
        except Exception:
            return Captured()  # a hung rank is ended, with or without evidence

    def abandon(self) -> None:
        """The result is not wanted any more: its file is removed, now or when the thread is done."""
        self._is_abandoned = True
        if self._call is not None:
            with contextlib.suppress(Exception):
                discard(self._call.answer(0.0))

    def _capture(self, ranks: Mapping[int, Identity], trigger: Trigger) -> Captured:
        from holdfast.incidents.capture.capture import capture, judged, spill
        from holdfast.incidents.capture.rank_probe import opened
        from holdfast.incidents.evidence import Case

        folder = os.path.join(self._directory, f"cycle-{self._cycle}")
        context = NodeContext.read(folder)
        wanted = [(who.rank, key, who.pid, who.start_time) for key, who in sorted(ranks.items())]
        with opened(folder, context.node, wanted) as local:
            until = time.monotonic() + LONGEST - FOR_VERDICT
            found = capture(local, context, trigger, until, ask=True)
            ready = time.monotonic()
            captured = Captured(judged(Case((found,))).verdict, ready, spill(found, self._directory))
        if self._is_abandoned:
            discard(captured)
        return captured


def import_capture() -> None:
    """Import what a capture needs: a monitor starts without it, and there is no time for it later."""
    with contextlib.suppress(Exception):  # a hang is found without evidence too
        import subprocess

        from holdfast.incidents import rules
        from holdfast.incidents.capture import capture

        del capture, rules
        # By vfork a thread that starts a program keeps the interpreter until that is loaded, from whatever disk.
        vars(subprocess)["_USE_VFORK"] = False


def discard(captured: Captured) -> None:
    if captured.file:
        with contextlib.suppress(OSError):
            os.unlink(captured.file)


class HangHandler:
    """Handles the overdue ranks of one cycle after the other; `boards` are those that the watch has open.

    `drop` is called with a local rank that cannot be handled because of an error: the others still are.
    """

    def __init__(
        self,
        settings: Settings,
        boards: Mapping[int, BoardReader],
        terminator: Terminator,
        send: Send,
        may_act: Callable[[], bool],
        drop: Callable[[int, Exception], object],
    ) -> None:
        self._settings, self._boards, self._terminator = settings, boards, terminator
        self._send, self._may_act, self._drop = send, may_act, drop
        self._case: tuple[Overdue, EvidenceCapture, int] | None = None  # the rank, and when it was noticed
        self.begin_cycle(-1, None)

    def begin_cycle(self, cycle: int, early: EarlyWatch | None) -> None:
        """The evidence on the cycle before is not wanted any more."""
        self._abandon()
        self._cycle, self._early = cycle, early
        self._accused_at = self._accused_until = 0  # meanwhile no rank is accused whose wait began before
        self._overdue: list[Overdue] = []  # of the newest scan
        self._reported: set[tuple[int, int]] = set()  # local ranks, and since when they wait

    def advance(self, overdue: list[Overdue], suspensions: Suspensions, now: int) -> int | None:
        """One step further; returns when to be called again (monotonic nanoseconds), None when there is no hurry."""
        self._overdue = overdue
        if self._accused_at:
            self._report_overdue(now)
        if self._case and self._case[0].local_rank not in self._boards:
            self._abandon()  # it was dropped
        if self._case:
            case, capture, noticed = self._case
            captured = capture.result(now)
            if captured is None:
                return now + POLL
            self._case = None
            try:
                self._conclude(case, captured, noticed, suspensions, now)
            except Exception as error:
                self._drop(case.local_rank, error)
                self._close_capture(captured)
            return now
        free = [
            each for each in overdue if now >= self._accused_until or each.passed.since_ns > self._accused_at
        ]
        for each in sorted(free, key=lambda one: one.passed.at_ns):
            try:
                if each.is_early or _is_running(each.who):
                    self._send({"event": "capture", "cycle": self._cycle})
                    self._case = each, self._start_capture(each, now), now
                    return now + POLL
            except Exception as error:
                self._drop(each.local_rank, error)
        return max(now, self._accused_until) if len(free) < len(overdue) else None

    def finish_capture(self, now: int) -> int | None:
        """The cycle ends for another reason: the launcher, which captures nothing itself meanwhile, gets the evidence.
        Returns when to be called again (monotonic nanoseconds), None when there is none."""
        if self._case is None:
            return None
        captured = self._case[1].result(now)
        if captured is None:
            return now + POLL
        self._case = None
        self._close_capture(captured)
        return None

    def _abandon(self) -> None:
        if self._case is not None:
            case, self._case = self._case, None
            case[1].abandon()
            self._close_capture(Captured())

    def _close_capture(self, captured: Captured) -> None:
        """No verdict follows from this evidence; the launcher removes the file."""
        self._send({"event": "evidence", "evidence": captured.file, "cycle": self._cycle})

    def _start_capture(self, overdue: Overdue, now: int) -> EvidenceCapture:
        capture = EvidenceCapture(self._settings.directory, self._cycle, now)
        with contextlib.suppress(Exception):  # a hung rank is ended with evidence or without
            ranks = {key: who for key, board in self._snapshots().items() if (who := board.identity)}
            passed = {
                each.who.rank: _passed_limit(each.passed, now) for each in self._overdue if not each.is_early
            }
            from holdfast.incidents.evidence import TriggerKind

            trigger = TriggerKind(EARLY if overdue.is_early else HANG)
            capture.start(ranks, Trigger(trigger, overdue.who.rank, passed))
        return capture

    def _snapshots(self) -> dict[int, Snapshot]:
        """The boards of all ranks now. One that cannot be read must not keep the hung rank from being ended."""
        found = {}
        for local_rank, reader in self._boards.items():
            with contextlib.suppress(Exception):
                board = reader.snapshot()
                if board.identity:
                    found[local_rank] = board
        return found

    def _conclude(
        self, overdue: Overdue, captured: Captured, noticed: int, suspensions: Suspensions, now: int
    ) -> None:
        """Accuse a rank, unless the overdue one has recovered meanwhile or another monitor is in charge."""
        try:
            accused, verdict = self._verdict(overdue, captured, noticed)
        except Exception:  # an error in the evidence must not keep a hung rank from being ended
            discard(captured)
            accused, verdict = self._verdict(overdue, Captured(), noticed)
        who = self._boards[accused].snapshot().identity
        assert who is not None
        if not self._is_still_overdue(overdue, suspensions, now):
            self._report_recovery(overdue, noticed)
            self._close_capture(captured)
            return
        # Sent before it is done, so that the launcher can explain the exit that follows.
        self._send(verdict)
        self._report_overdue(now)
        self._accused_at = now
        self._accused_until = now + int((self._settings.grace + CYCLE_GOES_ON) * SECOND)
        if sent := self._terminator.terminate(who, now):
            self._send({"event": "signal_sent", **self._rank(who), "signal": sent, "by": "monitor"})

    def _report_overdue(self, now: int) -> None:
        """Each rank that is past its timeout while a hang is handled, once: the accused one and others."""
        for each in self._overdue:
            key = (each.local_rank, each.passed.since_ns)
            if each.is_early or key in self._reported or not _is_running(each.who):
                continue
            self._reported.add(key)
            facts = {**_limit_facts(each.passed, now), "text": each.passed.text(now)}
            self._send(
                {"event": "overdue", **self._rank(each.who), "local_rank": each.who.local_rank, **facts}
            )

    def _rank(self, who: Identity) -> dict[str, Any]:
        return {"rank": who.rank, "pid": who.pid, "cycle": self._cycle}

    def _is_still_overdue(self, overdue: Overdue, suspensions: Suspensions, now: int) -> bool:
        """Checked last before acting: the rank runs, the same limit is passed, the node was not suspended meanwhile,
        and this monitor is in charge."""
        if was_suspended(now, time.monotonic_ns()):
            return False
        if overdue.is_early:
            return self._early is not None and self._early.still_confirmed(overdue) and self._may_act()
        same = self._earliest(overdue.local_rank, suspensions) == overdue.passed
        return same and _is_running(overdue.who) and self._may_act()

    def _report_recovery(self, overdue: Overdue, noticed: int) -> None:
        """A limit was passed and no rank was signalled for it: the user who set the limit is informed."""
        if overdue.is_early:
            return  # no limit was passed
        again = self._earliest(overdue.local_rank, Suspensions())
        if again is not None and again.since_ns == overdue.passed.since_ns:
            return  # the node was suspended meanwhile, and the rank got the time back
        if self._may_act() and _is_running(overdue.who):
            facts = {"reason": overdue.passed.reason, "text": overdue.passed.text(noticed)}
            self._send({"event": "recovered", **self._rank(overdue.who), **facts})

    def _earliest(self, local_rank: int, suspensions: Suspensions) -> Deadline | None:
        board = self._boards[local_rank].snapshot()
        return earliest(deadlines(board, suspensions, self._settings.warm_up))

    def _verdict(self, overdue: Overdue, captured: Captured, now: int) -> tuple[int, dict[str, Any]]:
        """The local rank that is accused, and the message: on the overdue rank, or on the one that it waits for."""
        boards = {**self._snapshots(), overdue.local_rank: overdue.board}
        ranks: dict[int, dict[str, Any]] = {}
        for key, board in boards.items():
            with contextlib.suppress(Exception):  # as in `_snapshots`
                ranks[key] = describe(board, now)
        verdict = captured.verdict or _judged_by_boards(overdue, boards, now)
        accused, text = overdue.local_rank, overdue.passed.text(now)
        if verdict.confidence != "low":
            blamed = (key for key, each in ranks.items() if each["rank"] == verdict.rank)
            accused = next((key for key in blamed if key == accused or self._may_be_accused(key)), accused)
        if accused != overdue.local_rank:
            text = f"Rank {overdue.who.rank}: {text} {verdict.sentence}"
        return accused, {
            "event": "verdict",
            "at": now / SECOND,
            "overdue_rank": overdue.who.rank,
            **_limit_facts(overdue.passed, now),
            "text": text,
            "signal": self._terminator.signal_name,
            **ranks[accused],
            **_from_evidence(captured),
            "others": [ranks[key] for key in sorted(ranks) if key != accused][:MOST_OTHERS],
        }

    def _may_be_accused(self, local_rank: int) -> bool:
        who = self._boards[local_rank].snapshot().identity
        return who is not None and _is_running(who) and not self._terminator.has_signalled(who)


def describe(board: Snapshot, now_ns: int) -> dict[str, Any]:
    """Rank, pid, open sections from the outside in, seconds there, step, process state and wait channel.

    From the board and ``/proc`` only, so no process is disturbed.
    """
    assert board.identity is not None
    who = board.identity
    since = board.open_sections[-1].since_ns if board.open_sections else board.last_activity_ns
    return {
        "rank": who.rank,
        "local_rank": who.local_rank,
        "pid": who.pid,
        "cycle": who.cycle,
        "where": " > ".join(section.name for section in board.open_sections),
        "for": round((now_ns - (since or who.started_ns)) / SECOND, 3),
        "silent": round((now_ns - (board.last_activity_ns or who.started_ns)) / SECOND, 3),
        "step": board.step,
        "heartbeats": board.heartbeat_count,
        "connected": board.connected,
        "finished": board.finished,
        "state": _state(who),
        "wait_channel": proc.wait_channel(who.pid),
    }


def _judged_by_boards(overdue: Overdue, boards: Mapping[int, Snapshot], now: int) -> Verdict:
    """Without evidence: by the boards and the states of the processes alone."""
    from holdfast.incidents import evidence as e
    from holdfast.incidents.capture.rank_probe import board_facts
    from holdfast.incidents.rules import judge

    found = []
    for key, board in boards.items():
        who = board.identity
        assert who is not None
        passed = _passed_limit(overdue.passed, now) if key == overdue.local_rank else None
        process = e.Process(state=_state(who))
        found.append(
            e.RankEvidence(who.rank, key, who.pid, "", board_facts(board, (), now), process, passed=passed)
        )
    return judge(e.Case((e.NodeEvidence("", e.HANG, accused=overdue.who.rank, ranks=tuple(found)),))).verdict


def _from_evidence(captured: Captured) -> dict[str, Any]:
    """The fields that the evidence adds to the verdict."""
    if captured.verdict is None:
        return {}
    verdict = captured.verdict
    return {
        "sentence": verdict.sentence,
        "cause": verdict.kind,
        "confidence": verdict.confidence,
        "culprit": verdict.rank,
        "evidence": captured.file,
        "evidence_mono": captured.ready,
    }


def _limit_facts(passed: Deadline, now_ns: int) -> dict[str, Any]:
    return {
        "reason": passed.reason,
        "section": passed.section,
        "waited": round(passed.waited(now_ns), 3),
        "limit": passed.limit,
    }


def _passed_limit(passed: Deadline, now_ns: int) -> PassedLimit:
    from holdfast.incidents.evidence import PassedLimit

    return PassedLimit(**_limit_facts(passed, now_ns), text=passed.text(now_ns))


def _state(who: Identity) -> str:
    found = proc.stat(who.pid)
    return found.state if found else "gone"


def _is_running(who: Identity) -> bool:
    """Whether the rank's process is still the one that was started, and is not ending."""
    return proc.is_running(who.pid, who.start_time)
