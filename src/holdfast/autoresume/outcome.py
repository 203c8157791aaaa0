"""How did an attempt end? What the journal tells of it, and what follows together with other evidence. Pure.

An *attempt* is one start of the whole job (of `ft_launcher`, which may restart ranks within it). What always holds:
the scheduler's word counts most, since it ended the attempt; then a request for the end (93), the finished flag, and
the exit code, which the journal explains. An attempt without any evidence is `LOST`, never a success. Only a fault of
the last restart cycle is what ended it: the launcher had answered the earlier ones with a restart.

Does not cover: exit codes of a launcher that means something else by 93 and 75; the account of an attempt whose
journal is missing or somewhere else is empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from signal import Signals
from typing import Any

from ..journal.event import Event, cycles
from ..journal.incidents import Incident, incidents

FAULTS = frozenset({"hang", "crash", "exit", "node lost", "launcher lost", "job lost"})
"""Kinds of incidents that can end an attempt; the others were requested."""

LONGEST = 300
"""Characters of a cause that are kept: a line for people, and the ledger stays small."""

SHUT_DOWN_CODE = 93
"""A rank requested the end of the whole job, or training again cannot help (docs/exit-codes.md)."""

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
    """A rank requested the end of the whole job, or training again cannot help: exit code 93."""
    CANCELLED = "cancelled"
    """By the user: Ctrl-C, `kill`, `scancel`."""
    LOST = "lost"
    """Its end was not observed: the process that kept the ledger was killed, or the machine failed."""

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
class Cause:
    """The fault that ended an attempt."""

    what: str
    """One line."""
    node: str = ""
    rank: int | None = None
    kind: str = "exit"
    """As `Incident.kind`."""


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of an attempt from its journal; the defaults say that nothing is."""

    cause: Cause | None = None
    preempted_by: str = ""
    """The signal that a launcher got and passed on: `SIGTERM`."""
    request: str = ""
    """Why a rank asked for the end of the whole job."""
    started: bool = False
    """At least one rank was started."""
    resumed_step: int | None = None
    """The first step of the restart cycle that began the latest: what was saved before it. None: not known."""
    nodes: tuple[str, ...] = ()
    """Who took part."""
    suspected: tuple[str, ...] = ()
    """Nodes that the launcher suspected, or for whose stragglers the job was stopped."""
    checkpoint: str = ""
    """From which the last restart cycle was to continue."""
    took_steps: bool = True
    """Whether a step was taken in that cycle, as far as is known."""
    only_same: bool = True
    """Whether no other failure came before these in the attempt."""
    failure: str = ""
    """The last exception with its step, where that may be the same again: `ValueError: bad batch after step 23`."""
    same_failures: int = 0
    """Restart cycles in a row that ended with it."""
    same_failure_limit: int = 0
    """How many in a row are to end the training; 0: never."""
    unread: bool = False
    """There is a journal, and it could not be read: what it does not tell may have been."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an attempt that has ended."""

    exit_code: int | None
    """Of the command; -n when signal n ended it; None when its end was not observed."""
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
    """False where only an exit code tells of a preemption: a program may end with it forever."""


_SCHEDULED = {
    Scheduler.TIME_LIMIT: (Kind.TIME_LIMIT, "the scheduler's time limit"),
    Scheduler.PREEMPTED: (Kind.PREEMPTED, "preempted by the scheduler"),
    Scheduler.NODE_LOST: (Kind.NODE_LOST, "the scheduler lost a node"),
    Scheduler.CANCELLED: (Kind.CANCELLED, "cancelled in the scheduler"),
}


def ending_of(known: Evidence) -> Ending:
    """Why an attempt ended."""
    # A script around the launcher may end with a code of its own. An attempt whose keeper was killed has none.
    asked = bool(known.account.request) and known.exit_code != 0
    if known.exit_code == SHUT_DOWN_CODE or asked:
        cause = known.account.cause
        unexplained = "exit code 93: a rank requested the end of the whole job, or training again cannot help"
        return Ending(Kind.SHUT_DOWN, known.account.request or (cause.what if cause else unexplained))
    if known.flag:
        odd = f", though the exit code is {known.exit_code}" if known.exit_code else ""
        return Ending(Kind.FINISHED, f"the finished flag is there{odd}")
    if known.cancelled_by:
        return Ending(Kind.CANCELLED, f"ended by {known.cancelled_by}")
    if known.scheduler is not Scheduler.NOTHING:
        kind, words = _SCHEDULED[known.scheduler]
        why = known.scheduler_says or (f"{words}: {known.node}" if known.node else words)
        return Ending(kind, why, node=known.node)
    return _by_itself(known)


def _by_itself(known: Evidence) -> Ending:
    code, account = known.exit_code, known.account
    if code is None:
        return Ending(Kind.LOST, "its end was not observed")
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
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def account_of(events: Iterable[Event], since: float = float("-inf")) -> Account:
    """Read the events (as `read_run` gives them) of the attempt that began at `since`, unix seconds."""
    # A report on ranks that stay at their end is of a job that continues.
    own = [event for event in events if event.t >= since and not event.get("job_goes_on")]
    found = incidents(own)
    fault = _fault_of_the_last_cycle(own, found)
    suspects = {event.text("suspect") for event in own if event.kind == "node_suspected"}
    asked = [incident.what for incident in found if incident.kind == "shutdown"]
    preempted = [event.text("signal") or "a signal" for event in own if event.kind == "preemption"]
    return Account(
        cause=Cause(short(fault.what), fault.node, fault.rank, fault.kind) if fault else None,
        preempted_by=preempted[0] if preempted else "",
        request=short(asked[-1]) if asked else "",
        started=any(event.kind == "rank_start" for event in own),
        resumed_step=_resumed(own),
        nodes=tuple(sorted({event.source for event in own if event.kind == "cycle_start"})),
        suspected=tuple(sorted(suspects - {""})),
        **_checkpoint(own),
        **_same_failure(own),
    )


def _checkpoint(events: list[Event]) -> dict[str, Any]:
    """What the last restart cycle was to continue from, and whether it took a step."""
    last = cycles(events)[-1:]
    chosen = [str(event.get("path") or "") for cycle in last for event in cycle.of_kind("checkpoint_chosen")]
    if not chosen:
        return {}
    # It is unknown for ranks that no launcher receives events of.
    is_heard = bool(last[0].of_kind("rank_connect"))
    return {"checkpoint": chosen[-1], "took_steps": not is_heard or bool(last[0].of_kind("first_step"))}


def _same_failure(events: list[Event]) -> dict[str, Any]:
    """What the last failure of the attempt has in common with those before."""
    reported = {event.get("cycle"): event for event in events if event.kind == "incident"}
    names = {"failure": str, "same_failures": int, "same_failure_limit": int}
    last = list(reported.values())[-1:]
    found = {name: event.get(name) for event in last for name in names}
    if not found or any(type(found[name]) is not kind for name, kind in names.items()):
        return {}
    only_same = len(reported) <= found["same_failures"]
    return {**found, "failure": short(found["failure"]), "only_same": only_same}


def _fault_of_the_last_cycle(events: list[Event], found: list[Incident]) -> Incident | None:
    places = {(cycle.run, cycle.number) for cycle in cycles(events)[-1:]}
    own = (each for each in found if (each.run, each.cycle) in places and each.kind in FAULTS)
    return next(own, None)


def short(text: str) -> str:
    """One line of at most `LONGEST` characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _resumed(events: list[Event]) -> int | None:
    """Ranks tell their first step at different moments, so a cycle's is the lowest; a cycle may begin anew from 0.

    Counted steps begin anew with each process, so they say nothing.
    """
    begun = []
    for cycle in cycles(events):
        told = [event.number("step") for event in cycle.of_kind("first_step") if not event.get("counted")]
        begun.append([step for step in told if step is not None])
    return max((min(steps) for steps in begun if steps), default=None)
