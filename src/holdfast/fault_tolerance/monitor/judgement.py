"""From ranks that are late to the one that is signalled: evidence, verdict, a last check, the signal.

Of several ranks that are late at once (the others wait for one in a collective) only one is accused, and its end ends
the cycle: the one that the evidence plainly blames, else the one that :mod:`.suspect` finds, else the one that is late
the longest. Before anyone is signalled the board is read again, the epoch and phase on the control page too.
Does not cover: a culprit on another node; the accused is then a rank of this node that waits for it, and the report
that joins all nodes names it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.incidents.place import Occasion

from ..board import BoardReader, Snapshot
from ..processes import proc, sweep
from .deadlines import Deadline, deadlines, earliest
from .execution import Executions
from .explain import describe_safely
from .gaps import SECOND, Gaps, overslept
from .inquest import LOOK, Finding, Inquest, examine, forget, limit
from .suspect import whom_it_waits_for

Tell = Callable[[dict[str, Any]], object]
MOST_OTHERS = 64  # ranks described beside the hung one
HANG, EARLY = (
    "hang",
    "early",
)  # triggers of the evidence; the second is the reason, too, where no limit is passed
NOBODY_STOPPED = 2.0  # seconds after which one more rank is accused because the cycle goes on regardless


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that has passed a limit, as it was seen then."""

    passed: Deadline
    local_rank: int
    board: Snapshot


class Judgement:
    """The judging of one cycle's ranks; `boards` are those that the watch has open."""

    def __init__(
        self,
        directory: str,
        cycle: int,
        boards: Mapping[int, BoardReader],
        executions: Executions,
        tell: Tell,
        *,
        may_act: Callable[[], bool],
        early_holds: Callable[[Late], bool],
        give_up: Callable[[int, Exception], object],
    ) -> None:
        self._directory, self._cycle, self._boards = directory, cycle, boards
        self._executions, self._tell = executions, tell
        self._may_act, self._early_holds, self._give_up = may_act, early_holds, give_up
        self._case: tuple[Late, Inquest, int] | None = None  # who, and when it was noticed
        self._accused_at = self._accused_until = 0  # meanwhile nobody else is accused who stood still before

    def proceed(self, late: Iterable[Late], gaps: Gaps, now: int) -> int | None:
        """One step further; returns when to be asked again (monotonic nanoseconds), None when there is no hurry."""
        if self._case and self._case[0].local_rank not in self._boards:
            self.abandon()  # it could not be looked at any more
        if self._case:
            return self._follow(*self._case, gaps, now)
        waiting = list(late)
        free = [
            each for each in waiting if now >= self._accused_until or each.passed.since_ns > self._accused_at
        ]
        for each in sorted(free, key=lambda one: one.passed.at_ns):
            with self._only_it(each.local_rank):
                if each.passed.reason == EARLY or _runs(each.board):
                    self._tell({"event": "capture", "cycle": self._cycle})
                    self._case = each, self._open(each, waiting, now), now
                    return now + LOOK
        return max(now, self._accused_until) if len(free) < len(waiting) else None

    def hand_over(self, now: int) -> int | None:
        """The cycle ends for another reason: the launcher, which takes no evidence of its own meanwhile, gets what is
        found. Returns when to be asked again (monotonic nanoseconds), None when there is nothing."""
        if self._case is None:
            return None
        found = self._case[1].finding(now)
        if found is None:
            return now + LOOK
        self._case = None
        self._end_capture(found)
        return None

    def abandon(self) -> None:
        """Nobody waits for the evidence any more: what is found is removed."""
        if self._case is not None:
            case, self._case = self._case, None
            case[1].abandon()
            self._end_capture(Finding())

    def _end_capture(self, found: Finding) -> None:
        """No verdict follows from this evidence; the launcher removes the file."""
        self._tell({"event": "evidence", "evidence": found.file, "cycle": self._cycle})

    @contextlib.contextmanager
    def _only_it(self, local_rank: int) -> Any:
        """An error in judging one rank must not blind the monitor to the others."""
        try:
            yield
        except Exception as error:
            self._give_up(local_rank, error)

    def _open(self, late: Late, waiting: list[Late], now: int) -> Inquest:
        """A hung rank is ended with evidence or without: whatever is wrong with the taking must not save it."""
        try:
            return self._inquest(late, waiting, now)
        except Exception:
            return Inquest(None, now)

    def _inquest(self, late: Late, waiting: list[Late], now: int) -> Inquest:
        who = {}
        for local_rank, reader in self._boards.items():
            with contextlib.suppress(Exception):
                if identity := reader.snapshot().identity:
                    who[local_rank] = identity
        passed = {
            each.board.identity.rank: limit(each.passed, now)
            for each in waiting
            if each.board.identity and each.passed.reason != EARLY
        }
        accused = late.board.identity.rank if late.board.identity else None
        trigger = EARLY if late.passed.reason == EARLY else HANG
        occasion = Occasion(trigger, accused, passed)
        over: list[bool] = []
        return Inquest(partial(examine, self._directory, self._cycle, who, occasion, over), now, over)

    def _follow(self, late: Late, inquest: Inquest, noticed: int, gaps: Gaps, now: int) -> int | None:
        found = inquest.finding(now)
        if found is None:
            return now + LOOK
        self._case = None
        try:
            return self._conclude(late, found, noticed, gaps, now)
        except Exception as error:  # an error in judging one rank must not blind the monitor to the others
            self._give_up(late.local_rank, error)
            self._end_capture(found)
            return now

    def _conclude(self, late: Late, found: Finding, noticed: int, gaps: Gaps, now: int) -> int:
        """The evidence is there: accuse somebody, unless the rank has gone on meanwhile or another one is in charge."""
        try:
            accused, verdict = self._verdict(late, found, noticed)
        except Exception:  # what the evidence says must not keep a hung rank from being ended
            forget(found)
            accused, verdict = self._verdict(late, Finding(), noticed)
        who = self._boards[accused].snapshot().identity
        assert who is not None
        if not self._still(late, gaps, now):
            self._tell_that_it_went_on(late, noticed)
            self._end_capture(found)
            return now
        # Told before it is done, so that the launcher can explain the exit that follows.
        self._tell(verdict)
        self._accused_at = now
        self._accused_until = now + int((self._executions.patience + NOBODY_STOPPED) * SECOND)
        sent = self._executions.begin(who, now)
        if sent:
            told = {"event": "signal_sent", "rank": who.rank, "pid": who.pid, "signal": sent, "by": "monitor"}
            self._tell({**told, "cycle": self._cycle})
        return now

    def _still(self, late: Late, gaps: Gaps, now: int) -> bool:
        """Asked last before acting: the rank lives, the same limit is passed, nothing stood still meanwhile, and we
        are in charge."""
        if overslept(now, time.monotonic_ns()):
            return False
        if late.passed.reason == EARLY:
            return self._early_holds(late) and self._may_act()
        board = self._boards[late.local_rank].snapshot()
        return earliest(deadlines(board, gaps)) == late.passed and _runs(board) and self._may_act()

    def _tell_that_it_went_on(self, late: Late, now: int) -> None:
        """A limit was passed and nothing was done about it: whoever sets limits wants to know."""
        who = late.board.identity
        if late.passed.reason == EARLY:
            return  # no limit of anybody's was passed
        again = earliest(deadlines(self._boards[late.local_rank].snapshot(), Gaps()))
        if again is not None and again.since_ns == late.passed.since_ns:
            return  # the world stood still meanwhile, and the rank got the time back
        if who is not None and self._may_act() and _runs(late.board):
            told = {"event": "went_on", "rank": who.rank, "pid": who.pid, "cycle": self._cycle}
            text = late.passed.text(now)
            self._tell({**told, "reason": late.passed.reason, "text": text})

    def _verdict(self, late: Late, found: Finding, now: int) -> tuple[int, dict[str, Any]]:
        """On the late rank, or on the one that it plainly waits for; with whose board it is."""
        described, text = describe_safely(late.board, now), late.passed.text(now)
        ranks = {**self._others(late.local_rank, now), late.local_rank: described}
        candidates = {
            key: ranks[key] for key in ranks if key != late.local_rank and self._may_be_accused(key)
        }
        suspect = whom_it_waits_for(described, late.passed.waited(now), candidates)
        accused = _accused(found, {**candidates, late.local_rank: described}, suspect and suspect[0])
        accused = late.local_rank if accused is None else accused
        if accused != late.local_rank:
            why = f" {suspect[1]}." if suspect and suspect[0] == accused else ""
            text = f"Rank {described['rank']}: {text}{why}"
        return accused, {
            "event": "verdict",
            "at": now / SECOND,
            "reason": late.passed.reason,
            "section": late.passed.section,
            "waited": round(late.passed.waited(now), 3),
            "limit": late.passed.limit,
            "text": text,
            "signal": self._executions.name,
            **ranks[accused],
            **_told(found),
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


def _accused(found: Finding, ranks: Mapping[int, Mapping[str, Any]], suspect: int | None) -> int | None:
    """By local rank: the one that the evidence blames for certain, else the suspect of the boards, else the one that
    the evidence blames, if that is more than a guess and it is one of these."""
    judged = found.taken.verdict if found.taken else None
    if judged is None or judged.rank is None or judged.confidence == "low":
        return suspect
    blamed = next((key for key, described in ranks.items() if described["rank"] == judged.rank), None)
    if blamed is not None and (judged.confidence == "high" or suspect is None):
        return blamed
    return suspect


def _told(found: Finding) -> dict[str, Any]:
    """What the evidence adds to the verdict."""
    if found.taken is None:
        return {}
    judged = found.taken.verdict
    return {
        "sentence": judged.sentence,
        "cause": judged.kind,
        "confidence": judged.confidence,
        "culprit": judged.rank,
        "evidence": found.file,
        "evidence_mono": found.taken.ready,
    }


def _runs(board: Snapshot) -> bool:
    """Whether the rank's process is still the one that was started, and is not ending."""
    who = board.identity
    return (
        who is not None and proc.start_time(who.pid) == who.start_time and not sweep.ends(proc.stat(who.pid))
    )
