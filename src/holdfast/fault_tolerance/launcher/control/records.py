"""The values that the nodes of a job agree on, and the rules by which the next one is made. Pure.

Each cycle begins with one cycle record, which exactly one node gets to write: a compare-and-set on the key
`cycle/N` of the job's store. It has everything that decides about later cycles, so that no launcher keeps that
for itself: the restart budget, the join budget, the step that was reached, the reason, the exit code.

Values are JSON. A field that this version does not have is ignored, one that is missing has its default, and a record
that cannot be read counts as one that lets nodes join: launchers of two versions may meet in a rolling update.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

from ..exit_codes import DO_NOT_REQUEUE, Outcome

T = TypeVar("T")

JOIN_INTERVAL = 30.0
JOIN_BUDGET = 10
HOUR = 3600.0
"""A restart only to let nodes join, or to continue without a sick one: seconds between two, and how many in an hour. A
flapping node must not restart a healthy job again and again."""
CALL_OFF_BUDGET = 10
"""Cycles in a row that are called off before their ranks start. The job ends with the next one."""


class Kind(str, Enum):
    """Why a cycle begins."""

    START = "start"
    RESTART = "restart"  # something failed: uses one restart of --max-restarts
    JOIN = "join"  # nodes join, one is sick, or a membership did not come about
    LEAVE = "exclude"  # a node leaves, the others continue
    END = "end"  # no cycle begins: the job ends


KEYS = """
cycle/N     once     the cycle record
join/N      log      nodes that ask for a place
members/N   once     the membership that was formed for this cycle
ack/N       log      members that are ready to start their ranks
go/N        once     where the ranks' store is; all members were ready
waiting/N   value    how many nodes wait for a place while the cycle runs; written by node 0
done/N      log      members whose ranks are done
stop/N      once     a node received a stop signal: its name and the signal
word/N      swapped  the newest word on the agreed stop: ask, commit or withdraw
arrived/N   log      what the nodes report first for it
answers/N   log      the nodes' answers to it
alive/NODE  value    a node's heartbeat: a number that grows each second
host        value    the node that hosts the store, and its --nnodes
launchers   log      all launchers of the job
left        log      those that left, with the reason
clock       value    a node and its time in unix seconds, written by each in turn, see `health.host`
failures    log      the judgements of the failures until now, for the choice of the members
name/NODE   once     a token of the launcher that has this name, see `rendezvous.register`
incident/N/* value   the nodes' evidence of an incident, see `incident_report.Reporter`
"""
"""The keys of the job's store. "once": by compare-and-set on nothing; "swapped": on the value before."""
OF_A_CYCLE = {"cycle", "join", "ack", "go", "waiting", "done", "stop", "word", "arrived", "answers"}
"""The keys that are read only in their cycle and at its end."""
HOST, LAUNCHERS, LEFT, FAILURES = "host", "launchers", "left", "failures"


def key(kind: str, of: int | str) -> str:
    """The key of this kind for a cycle or a node."""
    return f"{kind}/{of}"


# -- values ---------------------------------------------------------------------------------------------------


def encode(value: Any) -> str:
    """A dataclass or a dictionary as a value of the store."""
    return json.dumps(value if isinstance(value, dict) else asdict(value), separators=(",", ":"))


def decode(text: str) -> dict[str, Any]:
    """The reverse; {} for what is no JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def entries(log: str) -> dict[str, dict[str, Any]]:
    """The entries of a log by node, each node's newest. A line that was written twice counts once."""
    found: dict[str, dict[str, Any]] = {}
    for line in log.splitlines():
        entry = decode(line)
        if entry.get("node"):
            found[str(entry["node"])] = entry
    return found


def whole_number(entry: Mapping[str, Any], name: str) -> int:
    """A field of an entry that has to be a whole number; 0 where it is none."""
    value = entry.get(name)
    return value if type(value) is int else 0


class View(dict[str, str]):
    """The store's values by key, as far as they were read."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self._logs: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {}

    def log(self, key: str) -> dict[str, dict[str, Any]]:
        """The entries of a log; of one that grew, only what is new is decoded."""
        text = self.get(key, "")
        read, found = self._logs.get(key, ("", {}))
        if text is not read:
            if text.startswith(read):
                found.update(entries(text[len(read) :]))
            else:
                found = entries(text)
            self._logs[key] = (text, found)
        return found


def _built(cls: type[T], values: Mapping[str, Any], **given: Any) -> T:
    """A dataclass from those of the values that have the type of the field's default."""
    defaults = {each.name: each.default for each in fields(cls)}  # type: ignore[arg-type]
    fit = {
        name: value
        for name, value in values.items()
        if name in defaults
        and (type(value) is type(defaults[name]) or (type(value), type(defaults[name])) == (int, float))
    }
    return cls(**{**fit, **given})


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a membership: `ranks` on it, the `address` under which others reach it, and what places it."""

    node: str  # a name that no other launcher of the job has or had: host:pid with a random part
    ranks: int = 1
    address: str = ""
    order: int = -1  # --node-rank, SLURM_PROCID or GROUP_RANK; -1: not given
    nnodes: str = ""  # its --nnodes
    role: str = ""  # its --role
    domain: str = ""  # --ft-node-domain, such as its rack

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> Member:
        """From an entry of a log."""
        return _built(cls, values, node=str(values.get("node", "")))


@dataclass(frozen=True)
class Membership:
    """The nodes that take part, in order."""

    members: tuple[Member, ...]
    unfit: tuple[tuple[str, str], ...] = ()
    """The suspected and sick nodes, with or without a place, and the suspected node domains without one; each with why
    it is sick, "" where past failures make it suspect."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The nodes' names, in order."""
        return tuple(member.node for member in self.members)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The nodes and node domains that have no place because they are suspect or sick."""
        return tuple(name for name, _ in self.unfit if name not in self.names)

    @property
    def world_size(self) -> int:
        """How many ranks there are on all nodes."""
        return sum(member.ranks for member in self.members)

    @property
    def leader(self) -> str:
        """Node 0: it hosts the ranks' store and collects what the nodes report."""
        return self.members[0].node

    def index(self, node: str) -> int:
        """The node's number. Raises ValueError for a node that does not take part."""
        return self.names.index(node)

    def first_rank(self, node: str) -> int:
        """The global rank of the node's local rank 0."""
        return sum(member.ranks for member in self.members[: self.index(node)])

    def role_ranks(self, node: str) -> tuple[int, int]:
        """Among the ranks with the node's role: the number of its local rank 0, and how many there are."""
        role = self.members[self.index(node)].role
        ranks = [(member.node, member.ranks) for member in self.members if member.role == role]
        before = [name for name, _ in ranks].index(node)
        return sum(count for _, count in ranks[:before]), sum(count for _, count in ranks)

    def neighbour(self, node: str) -> str:
        """The node that this one watches, in a ring; '' in a membership of one."""
        return self.names[(self.index(node) + 1) % len(self.members)] if len(self.members) > 1 else ""

    def encode(self) -> str:
        """The value of the store."""
        unfit = {"unfit": dict(self.unfit)} if self.unfit else {}
        return encode({"members": [asdict(member) for member in self.members], **unfit})

    @classmethod
    def decode(cls, text: str) -> Membership:
        """The reverse of :meth:`encode`."""
        lines, unfit = (decode(text).get(name) for name in ("members", "unfit"))
        lines = [line for line in lines if isinstance(line, dict)] if isinstance(lines, list) else []
        unfit = unfit.items() if isinstance(unfit, dict) else ()
        return cls(tuple(map(Member.decode, lines)), tuple((name, str(why)) for name, why in unfit))


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """Why the cycle with this number begins, or for `Kind.END`, why none does."""

    cycle: int
    kind: Kind = Kind.JOIN
    reason: str = ""
    node: str = ""  # that wrote it
    exit_code: int = 0  # of the job, for END
    preempted: bool = False  # for END: the job received a stop signal
    no_progress: bool = False  # for END: too many failed cycles in a row have saved nothing new
    is_same_failure: bool = False  # for END: too many cycles in a row have had the same failure
    is_explained: bool = False  # a rank failed by itself: no rank of another node is needed as a witness
    restarts: int = 0  # used of --max-restarts
    reached_step: int = -1  # the highest step of the job so far
    iteration: int = -1  # of the last checkpoint, read after the last failure; -1: no number was read
    stalled: int = 0  # failed cycles before this one, in a row, in which that number did not grow
    failure: str = (
        ""  # of the cycle before: an exception and its step, see `Failure.signature`; "": not known
    )
    same_failures: int = 0  # cycles before this one, in a row, that had it
    gather: bool = True  # the membership has to be formed anew; else it is that of the cycle before
    base: int = -1  # the newest cycle for which a membership was formed before this one and began; -1: none
    lost: tuple[str, ...] = ()  # members of `base` that are gone or left: not waited for
    waiting: int = 0  # nodes that wait for a place
    called_off: int = 0  # cycles before this one, in a row, whose ranks never started
    joins: tuple[float, ...] = ()  # restarts to let nodes join, in seconds of job time
    at: float = 0.0  # seconds of job time at which it was written

    def encode(self) -> str:
        """The value of the store."""
        return encode(self)

    @classmethod
    def decode(cls, text: str, cycle: int) -> CycleRecord:
        """The reverse of :meth:`encode`; `cycle` is the number that its key has."""
        values = decode(text)
        try:
            kind = Kind(values["kind"])
        except (KeyError, ValueError):
            return cls(cycle, Kind.JOIN, "its cycle record is of another version and cannot be read")
        for name, of in ("lost", str), ("joins", float):
            found = values.get(name)
            items = found if isinstance(found, list) else []
            values[name] = tuple(each for each in items if type(each) is of)
        record = _built(cls, values, cycle=cycle, kind=kind)
        return record if record.base >= 0 else replace(record, gather=True)

    @property
    def formed(self) -> int:
        """The cycle under whose number the store has this cycle's membership."""
        return self.cycle if self.gather else self.base

    @property
    def is_trouble(self) -> bool:
        """Whether something went wrong, so that evidence is wanted."""
        if self.kind is Kind.END:
            is_quiet = self.preempted or self.exit_code in (Outcome.SUCCEEDED.code, Outcome.SHUT_DOWN.code)
            return self.no_progress or self.is_same_failure or not is_quiet
        return self.kind is Kind.RESTART


FIRST = CycleRecord(0, Kind.START)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user set, and what the node is. Times in seconds."""

    me: Member
    least: int = 1
    most: int = 1
    is_host: bool = True  # of the job's store
    is_alone: bool = False  # one node, and no address at which others could join
    store: str = ""  # the store's address, for people
    max_restarts: int = 0
    reset_on_progress: bool = False
    node_timeout: float = 10.0
    join_timeout: float = 600.0
    last_call: float = 30.0
    term_timeout: float = math.inf
    stop_timeout: float = 15.0
    exit_timeout: float = 10.0  # for a process whose main thread an exception has ended
    finished_timeout: float = math.inf  # for one whose script has finished
    preempted_code: int = 0
    iteration_file: str = ""  # has the iteration of the last checkpoint; "": progress is not measured by it
    least_progress: int = 1  # iterations that count as progress
    most_stalled: int = 0  # failed cycles in a row without progress that end the job; 0: never
    same_failure_limit: int = 0  # cycles in a row with the same failure that end the job; 0: never
    exclude_suspects: bool = False  # continue without a suspected node where no other waits for its place
    no_restart_code: int = DO_NOT_REQUEUE  # exit code then
    segment: int = 1  # nodes of one domain in each complete group of the membership
    checks_health: bool = False  # a node asks for a place when it knows whether it is sick
    exclude_sick: bool = False  # the same for a sick node, which leaves

    @property
    def nnodes(self) -> str:
        """As `--nnodes` has it."""
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


# -- the next record ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of cycle `now` as one node sees it, from which the next record is made."""

    now: CycleRecord
    settings: Settings  # of the node that writes the next record
    began: bool  # the ranks were started
    job_time: float  # seconds
    waiting: int = 0  # nodes that wait for a place
    room: int = 0  # more nodes that could take part
    step: int = -1  # the highest that this node's ranks reached in the cycle
    checkpoints: int = 0  # that they finished in it
    iteration: int = -1  # of the last checkpoint, read after the failure; -1: no number was read

    @property
    def is_measured(self) -> bool:
        """Whether the iteration of the last checkpoint shows how far this cycle came."""
        return self.iteration >= 0 and self.now.iteration >= 0

    @property
    def has_advanced(self) -> bool:
        """Whether the cycle made progress: by saved iterations where they were read, else by steps and checkpoints."""
        if self.is_measured:
            return self.iteration >= self.now.iteration + self.settings.least_progress
        return self.step > self.now.reached_step or self.checkpoints > 0

    @property
    def stalled(self) -> int:
        """Failed cycles in a row without progress, this one included. One without a number does not count."""
        if not self.is_measured:
            return self.now.stalled
        return 0 if self.has_advanced else self.now.stalled + 1

    def next(self, kind: Kind, reason: str, *, lost: Iterable[str] = (), **changes: Any) -> CycleRecord:
        """The record of the next cycle. One without lost or new nodes keeps the membership."""
        now = self.now
        base = now.formed if self.began else now.base
        gone = (*(now.lost if base == now.base else ()), *lost)
        joining = min(self.waiting, self.room)
        record = replace(
            now,
            cycle=now.cycle + 1,
            kind=kind,
            reason=reason,
            node=self.settings.me.node,
            is_explained=False,
            reached_step=max(now.reached_step, self.step),
            gather=kind is not Kind.RESTART or bool(gone) or joining > 0 or not self.began,
            base=base,
            lost=tuple(dict.fromkeys(gone)),
            waiting=self.waiting if gone else joining,
            called_off=0 if self.began else now.called_off,
            at=self.job_time,
        )
        return replace(record, **changes)

    def restart(
        self,
        reason: str,
        *,
        exit_code: int = Outcome.NO_RESTART_LEFT.code,
        lost: Iterable[str] = (),
        gather: bool = False,
        failure: str | None = "",
    ) -> CycleRecord:
        """After a failure: a restart if one of `max_restarts` is left, else the end with `exit_code`.

        With `reset_on_progress` only restarts in a row without progress count. A lost node, and a cycle whose ranks
        never started, count as well. With `gather` the membership is formed anew although no node is known to be lost.
        After `most_stalled` failed cycles in a row without progress the job ends with `no_restart_code`, and after
        `same_failure_limit` in a row with the same `failure`. With None the cycle does not count in that row: its ranks
        only lost a rank of another node, whose own failure may be the same again.
        """
        settings = self.settings
        iteration = self.iteration if self.iteration >= 0 else self.now.iteration
        used = 0 if settings.reset_on_progress and self.has_advanced else self.now.restarts
        if failure is None:
            failure, same_failures = self.now.failure, self.now.same_failures
        else:
            before = self.now.same_failures if failure == self.now.failure else 0
            same_failures = before + 1 if failure else 0
        if 0 < settings.most_stalled <= self.stalled:
            record = replace(self.end(reason, settings.no_restart_code), no_progress=True)
        elif 0 < settings.same_failure_limit <= same_failures:
            record = replace(self.end(reason, settings.no_restart_code), is_same_failure=True)
        elif used < settings.max_restarts:
            record = self.next(Kind.RESTART, reason, lost=lost, restarts=used + 1)
            may_shrink = settings.exclude_suspects and settings.least < settings.most
            if self.waiting or may_shrink:  # past failures may take a node's place
                record = replace(record, gather=True, waiting=self.waiting)
            record = replace(record, gather=record.gather or gather)
        else:
            record = self.end(reason, exit_code)
        record = replace(record, failure=failure, same_failures=same_failures)
        return replace(record, iteration=iteration, stalled=self.stalled)

    def call_off(self, reason: str, lost: Iterable[str] = ()) -> CycleRecord:
        """A cycle whose ranks have not started does not come about. Uses no restart, but has a budget of its own."""
        if self.now.called_off >= CALL_OFF_BUDGET:
            why = f"{self.now.called_off + 1} cycles in a row were called off; the last: {reason}"
            return self.end(why, Outcome.CALLED_OFF.code)
        return self.next(Kind.JOIN, reason, lost=lost, called_off=self.now.called_off + 1)

    def join(self, reason: str) -> CycleRecord | None:
        """Form the membership anew although nothing has failed; None while the budget for that is used."""
        joins = tuple(at for at in self.now.joins if self.job_time - at <= HOUR)
        if len(joins) >= JOIN_BUDGET or (joins and self.job_time - joins[-1] < JOIN_INTERVAL):
            return None
        return self.next(Kind.JOIN, reason, joins=(*joins, self.job_time), waiting=self.waiting)

    def end(self, reason: str, exit_code: int, *, preempted: bool = False) -> CycleRecord:
        """The job ends."""
        return self.next(Kind.END, reason, exit_code=exit_code, preempted=preempted)
