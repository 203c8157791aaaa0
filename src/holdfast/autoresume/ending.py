"""How did an attempt end? Decided from what is known of it: exit code, finished flag, journal, scheduler. Pure.

An *attempt* is one start of the whole job (of `ft_launcher`, which may restart ranks within it). What always holds:
the scheduler's word counts most, since it ended the attempt; then a request for the end (93), the finished flag, and
the exit code, which the journal explains. An attempt without any evidence is `LOST`, never a success.

Does not cover: exit codes of a launcher that means something else by 93 and 75.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .account import Account

SHUT_DOWN_CODE = 93
"""A rank requested the end of the whole job, or the job made no progress (docs/exit-codes.md)."""

PREEMPTED_CODE = 75
"""What `--ft-preempted-exit-code` customarily is."""

SIGKILL_CODE = 128 + 9
INTERRUPTED_CODE = 130
USAGE_CODE = 2

SIGHUP, SIGTERM = 1, 15
ASKED_TO_END = frozenset({-SIGTERM, 128 + SIGTERM, -SIGHUP, 128 + SIGHUP})
"""Exit codes of a command that ended by a signal which asks for the end: nothing in it failed."""


class Kind(str, Enum):
    """Why an attempt ended. The values stand in the ledger."""

    FINISHED = "finished"
    """The finished flag is there: no further attempt is needed."""
    PREEMPTED = "preempted"
    """A signal or the scheduler ended it, and no rank failed by itself."""
    TIME_LIMIT = "time limit"
    """The scheduler's time for it was over."""
    ENDED = "ended"
    """With exit code 0, by itself, and without the finished flag: a clean stop, more is to be done."""
    FAILED = "failed"
    NODE_LOST = "node lost"
    REFUSED = "refused"
    """The launcher refused its command line: nothing was started, and it would be refused again."""
    SHUT_DOWN = "shut down"
    """A rank requested the end of the whole job, or the job made no progress: exit code 93."""
    CANCELLED = "cancelled"
    """By the user: Ctrl-C, `kill`, `scancel`."""
    LOST = "lost"
    """Nobody saw how it ended: whoever kept the ledger was killed, or the machine was."""

    def __str__(self) -> str:
        return self.value


class Scheduler(str, Enum):
    """What the scheduler says of the end of an attempt, where there is one."""

    NOTHING = ""
    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"
    NODE_LOST = "node lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an attempt that has ended."""

    exit_code: int | None
    """Of the command; -n when signal n ended it; None when nobody saw it."""
    flag: bool
    """The finished flag is there."""
    scheduler: Scheduler = Scheduler.NOTHING
    scheduler_says: str = ""
    """Its words, one line, such as `NODE_FAIL: slurm-3`."""
    node: str = ""
    """The node that is lost, where the scheduler names one."""
    cancelled_by: str = ""
    """Who ended it, when a person did: `Ctrl-C`, `SIGTERM`."""
    account: Account = field(default_factory=Account)
    """What the journal tells."""
    preempted_code: int = PREEMPTED_CODE
    is_launcher: bool = True
    """The command is `ft_launcher`, whose exit code 2 says that nothing was started."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, and how that is known."""

    kind: Kind
    why: str
    """One line for people: who, what."""
    node: str = ""
    """The first node to fail, or the one that is lost."""
    rank: int | None = None
    """The first rank to fail."""
    witnessed: bool = True
    """False where only an exit code tells of a preemption: a program may say so for ever."""


_SCHEDULED = {
    Scheduler.TIME_LIMIT: (Kind.TIME_LIMIT, "the scheduler's time limit"),
    Scheduler.PREEMPTED: (Kind.PREEMPTED, "preempted by the scheduler"),
    Scheduler.NODE_LOST: (Kind.NODE_LOST, "the scheduler lost a node"),
    Scheduler.CANCELLED: (Kind.CANCELLED, "cancelled in the scheduler"),
}


def ending_of(known: Evidence) -> Ending:
    """Why an attempt ended."""
    # A script around the launcher may end with a code of its own, and nobody sees one whose keeper was killed.
    asked = bool(known.account.request) and known.exit_code != 0
    if known.exit_code == SHUT_DOWN_CODE or asked:
        unexplained = "exit code 93: a rank requested the end of the whole job, or the job made no progress"
        return Ending(Kind.SHUT_DOWN, known.account.request or unexplained)
    if known.flag:
        odd = f", though the exit code is {known.exit_code}" if known.exit_code else ""
        return Ending(Kind.FINISHED, f"the finished flag is there{odd}")
    if known.cancelled_by:
        return Ending(Kind.CANCELLED, f"ended by {known.cancelled_by}")
    if known.scheduler is not Scheduler.NOTHING:
        return _scheduled(known)
    return _by_itself(known)


def _scheduled(known: Evidence) -> Ending:
    kind, words = _SCHEDULED[known.scheduler]
    why = known.scheduler_says or (f"{words}: {known.node}" if known.node else words)
    return Ending(kind, why, node=known.node)


def _by_itself(known: Evidence) -> Ending:
    code, account = known.exit_code, known.account
    if code is None:
        return Ending(Kind.LOST, "nobody saw how it ended")
    if code in (INTERRUPTED_CODE, -2):
        return Ending(Kind.CANCELLED, "the command was ended by Ctrl-C (SIGINT)")
    if code == 0:
        if account.preempted_by:
            return Ending(Kind.PREEMPTED, f"ended cleanly after {account.preempted_by}")
        return Ending(Kind.ENDED, "exit code 0 without the finished flag", witnessed=False)
    if code == known.preempted_code and code:
        by = f" after {account.preempted_by}" if account.preempted_by else ""
        return Ending(Kind.PREEMPTED, f"exit code {code}{by}", witnessed=bool(account.preempted_by))
    if code in ASKED_TO_END and not account.cause:
        return Ending(Kind.PREEMPTED, _code_in_words(code), witnessed=bool(account.preempted_by))
    if code == USAGE_CODE and known.is_launcher and not (account.started or account.unread):
        return Ending(Kind.REFUSED, "ft_launcher refused its command line (exit code 2) and started nothing")
    return _failed(known, code)


_SHELL_CODES = {
    126: " (a shell's word for: the command cannot be executed)",
    127: " (a shell's word for: the command was not found)",
}


def _failed(known: Evidence, code: int) -> Ending:
    cause = known.account.cause
    if cause is None:
        after = f" after {known.account.preempted_by}" if known.account.preempted_by else ""
        return Ending(Kind.FAILED, _code_in_words(code) + after)
    kind = Kind.NODE_LOST if cause.kind == "node lost" else Kind.FAILED
    return Ending(kind, cause.what, node=cause.node, rank=cause.rank)


def _code_in_words(code: int) -> str:
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 128 + 65:
        return f"ended by {signal_name(number)} (exit code {128 + number})"
    return f"exit code {code}{_SHELL_CODES.get(code, '')}"


def signal_name(number: int) -> str:
    """The name of a signal; `signal 77` for one that has none."""
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
