"""The ledger: every attempt of a run directory, in chains, and the records that it is kept as. Pure.

A *chain* is a row of attempts that one decision to train has started: it ends when the training is finished, given up
or cancelled. What comes after that in the same run directory is a new chain, with a budget of its own; a chain whose
keeper was killed has no end, and the next process continues it. Attempts are numbered through, from 1.

A record is a flat JSON object with `t` (unix seconds) and `kind`. What always holds: records, fields and values that
this version does not know are passed over, and a record that makes no sense is left out; none of them is an error.

Does not cover: files (`run_dir`), and what follows from the ledger (`policy`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from .outcome import Account, Ending, Kind

Record = dict[str, Any]

JOB = "job "
"""What comes before the number of a job in `Chain.host`: no host's name has a blank."""

CHAIN, ATTEMPT, ATTEMPT_END, CHAIN_END = "chain", "attempt", "attempt_end", "chain_end"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the whole job. Fields that tell of its end have their defaults while it runs."""

    number: int
    """From 1, through all chains of the ledger."""
    began: float
    """Unix seconds."""
    host: str = ""
    """Where its process was started (the batch host of a cluster)."""
    pid: int | None = None
    started: int | None = None
    """The start time of that process in clock ticks: with `pid` it names it for good."""
    mark: str = ""
    """What all its processes have in their environment, to find them by."""
    job: str = ""
    """The scheduler's name for it, such as a Slurm job id and its restart count, `4711.2`."""
    ended: float | None = None
    """Unix seconds; None while it runs, or where its end was not observed."""
    kind: Kind | None = None
    """Why it ended; None while it runs."""
    exit_code: int | None = None
    """Of the command; -n when signal n ended it."""
    why: str = ""
    """One line for people."""
    node: str = ""
    """The first node to fail, or the one that is lost."""
    rank: int | None = None
    witnessed: bool = True
    """False where only the exit code tells that this was a clean end (`Ending.witnessed`)."""
    resumed_step: int | None = None
    """As `Account` has it."""
    nodes: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    checkpoint: str = ""
    took_steps: bool = True
    failure: str = ""
    same_failures: int = 0
    same_failure_limit: int = 0
    only_same: bool = True

    @property
    def seconds(self) -> float | None:
        """How long it ran; None while it does, or where its end was not observed."""
        return None if self.ended is None else max(0.0, self.ended - self.began)


@dataclass(frozen=True, slots=True)
class Chain:
    """A row of attempts."""

    number: int
    began: float
    attempts: tuple[Attempt, ...] = ()
    state: str = ""
    """How it ended, a `policy.State`; empty while it runs or where its keeper was killed."""
    why: str = ""
    command: tuple[str, ...] = ()
    flag: str = ""
    """The finished flag's path."""
    host: str = ""
    pid: int | None = None
    started: int | None = None
    """Who keeps it, or kept it last."""

    @property
    def job(self) -> str:
        """The Slurm job that keeps it; empty for a keeper on a machine."""
        return self.host[len(JOB) :] if self.host.startswith(JOB) else ""

    @property
    def keeper(self) -> str:
        """Who keeps it, or kept it last, in brackets; the process of a job lived for a moment only."""
        if not self.pid:
            return ""
        return f" ({self.host})" if self.job else f" (pid {self.pid} on {self.host})"

    @property
    def ended(self) -> bool:
        """Whether it is known to be over."""
        return bool(self.state)


@dataclass(frozen=True, slots=True)
class Ledger:
    """All chains of a run directory, the oldest first."""

    chains: tuple[Chain, ...] = ()

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Ledger:
        """Read records in the order in which they were written.

        The same record again counts for none: a write that seemed to hang was done in the end.
        """
        ledger, seen = cls(), set[str]()
        for record in records:
            if (text := repr(record)) not in seen:
                seen.add(text)
                ledger = ledger.with_record(record)
        return ledger

    def with_record(self, record: Mapping[str, Any]) -> Ledger:
        """The ledger after one more record."""
        read = {CHAIN: _chain, ATTEMPT: _attempt, ATTEMPT_END: _attempt_end, CHAIN_END: _chain_end}
        kind = record.get("kind")
        reader = read.get(kind) if isinstance(kind, str) else None
        return self if reader is None else Ledger(reader(self.chains, record))

    @property
    def chain(self) -> Chain | None:
        """The latest one, ended or not."""
        return self.chains[-1] if self.chains else None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Of all chains."""
        return tuple(attempt for chain in self.chains for attempt in chain.attempts)

    @property
    def next_number(self) -> int:
        """The number of the next attempt."""
        return max((attempt.number for attempt in self.attempts), default=0) + 1

    @property
    def open_attempt(self) -> Attempt | None:
        """The latest attempt, if it has no end: it runs, or its keeper was killed."""
        attempts = self.chain.attempts if self.chain else ()
        return attempts[-1] if attempts and attempts[-1].kind is None else None


def chain_begins(
    t: float,
    *,
    flag: str,
    host: str,
    pid: int,
    command: Sequence[str] = (),
    started: int | None = None,
    carries_on: bool = False,
) -> Record:
    """Begin a chain, or continue one whose keeper was killed."""
    who = {"host": host, "pid": pid, "started": started}
    return {"t": t, "kind": CHAIN, "carries_on": carries_on, "command": list(command), "flag": flag, **who}


def attempt_begins(t: float, attempt: Attempt) -> Record:
    """The attempt is about to be started; of it `_AT_BEGIN` is kept."""
    kept = {name: getattr(attempt, name) for name in _AT_BEGIN}
    return {"t": t, "kind": ATTEMPT, "attempt": attempt.number, **{k: v for k, v in kept.items() if v}}


def attempt_ends(
    t: float,
    number: int,
    ending: Ending,
    *,
    exit_code: int | None,
    account: Account | None = None,
    seen: bool = True,
) -> Record:
    """The attempt has ended, and why. `seen`: at about `t`, and not some time before."""
    account = account or Account()
    known = {
        "node": ending.node,
        "rank": ending.rank,
        **{name: getattr(account, name) for name in _OF_ACCOUNT},
    }
    defaults = {field.name: field.default for field in fields(Attempt)}
    return {
        "t": t,
        "kind": ATTEMPT_END,
        "attempt": number,
        "ending": ending.kind.value,
        "exit_code": exit_code,
        "why": ending.why,
        "witnessed": ending.witnessed,
        **{name: value for name, value in known.items() if value != defaults[name]},
        **({} if seen else {"seen": False}),
    }


def chain_ends(t: float, state: str, why: str) -> Record:
    """The chain is over: `state` is a `policy.State`."""
    return {"t": t, "kind": CHAIN_END, "state": str(state), "why": why}


_AT_BEGIN = ("host", "pid", "started", "mark", "job")
_OF_ACCOUNT = (
    *("resumed_step", "nodes", "suspected", "checkpoint", "took_steps"),
    *("failure", "same_failures", "same_failure_limit", "only_same"),
)
_AT_END = ("exit_code", "why", "witnessed", "node", "rank", *_OF_ACCOUNT)
_OF_CHAIN = ("command", "flag", "host", "pid", "started")
"""Fields of an attempt or a chain that are fields of a record."""

_Chains = tuple[Chain, ...]


def _chain(chains: _Chains, record: Mapping[str, Any]) -> _Chains:
    carries_on = _value(record, "carries_on", bool, False) and bool(chains) and not chains[-1].ended
    before = chains[-1] if carries_on else Chain(len(chains) + 1, _time(record))
    chain = replace(before, **_read(record, Chain, _OF_CHAIN))
    return (*(chains[:-1] if carries_on else chains), chain)


def _attempt(chains: _Chains, record: Mapping[str, Any]) -> _Chains:
    number = _value(record, "attempt", int, None)
    if number is None:
        return chains
    if not chains or chains[-1].ended:
        # Its chain's own record is lost.
        chains = (*chains, Chain(len(chains) + 1, _time(record)))
    attempt = Attempt(number, _time(record), **_read(record, Attempt, _AT_BEGIN))
    last = chains[-1]
    others = tuple(each for each in last.attempts if each.number != number)
    return (*chains[:-1], replace(last, attempts=(*others, attempt)))


def _attempt_end(chains: _Chains, record: Mapping[str, Any]) -> _Chains:
    number = _value(record, "attempt", int, None)
    return tuple(
        replace(
            chain,
            attempts=tuple(
                _ended(each, record) if each.number == number else each for each in chain.attempts
            ),
        )
        for chain in chains
    )


def _ended(attempt: Attempt, record: Mapping[str, Any]) -> Attempt:
    kind = _kind(record.get("ending"))
    return replace(
        attempt,
        # when it was found out says nothing of its length
        ended=_time(record) if kind is not Kind.LOST and _value(record, "seen", bool, True) else None,
        kind=kind,
        **_read(record, Attempt, _AT_END),
    )


def _chain_end(chains: _Chains, record: Mapping[str, Any]) -> _Chains:
    state, why = _value(record, "state", str, ""), _value(record, "why", str, "")
    return (*chains[:-1], replace(chains[-1], state=state, why=why)) if chains and state else chains


def _kind(value: object) -> Kind:
    try:
        return Kind(value)
    except ValueError:  # of a newer version: it spends nothing and resets nothing
        return Kind.LOST


# A record's fields as they may be found on disk: each of the type that is asked for, or its default.

_TYPES = {"str": str, "bool": bool, "int": int, "int | None": int, "tuple[str, ...]": tuple}
"""By what a field is declared as. True is no number."""


def _read(record: Mapping[str, Any], kind: type[Attempt | Chain], names: Iterable[str]) -> dict[str, Any]:
    """These fields of an attempt or a chain."""
    found = {}
    for field in fields(kind):
        if field.name in names:
            value = record.get(field.name)
            if isinstance(value, list):
                value = tuple(each for each in value if isinstance(each, str))
            found[field.name] = value if type(value) is _TYPES[str(field.type)] else field.default
    return found


def _value(record: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = record.get(name)
    return value if type(value) is kind else default


def _time(record: Mapping[str, Any]) -> float:
    value = record.get("t")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return 0.0
