"""The incidents of a job: its journal read as a numbered list. Pure.

A cycle has one failure at most. The launcher's `incident` event has its rank or node, its sentence and its followers,
so the list and the report agree: where the event names no rank, the list names none. A node that did not come back
completes a verdict that leaves the node open ("elsewhere"). Without such an event (the launcher was killed before) the
first `verdict` of a monitor decides, else the first `rank_exit` that nothing had asked for, and other ranks that failed
in the cycle are its followers. A lost node that the failure does not name, a preemption, and that a node could not
continue with the job are incidents of their own. An exit that the launcher, the monitor or the preemption asked for is
none.

All durations begin when the failure was *noticed* and are taken from the monotonic clock of the node that noticed it,
so a wall clock that is set does no harm. Events are not kept: `KINDS` are read, and each leaves a few values.

Does not cover: which of two ranks on different nodes failed first when it is closer than the nodes' clocks agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from signal import Signals
from typing import Any

from .event import CycleSorter, Event

SAME_MOMENT = 1.0
"""Seconds in which a signal that was sent to all processes has reached them all."""

WITHOUT_EVIDENCE = frozenset(("preemption", "job lost", "shutdown", "restart", "excluded"))
"""Kinds of incidents for which none is captured."""

_OWN_END = {
    "exception": "exit",
    "exit": "exit",
    "early_exit": "exit",
    "signal": "crash",
    "out_of_memory": "crash",
    "node_lost": "node lost",
}
"""Kinds of verdicts of a rank or node that ended, and the kind of incident that this is. Others are hangs."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that went wrong."""

    number: int
    """From 1, in the order of time."""
    kind: str
    """hang, crash (by a signal), exit (by itself), node lost, launcher lost, preemption, excluded, shutdown, job
    lost (no way to continue with it), restart (for another reason, such as a node that joins)."""
    t: float
    """When it was noticed: unix seconds, by the clock of the first node in the run directory."""
    run: int
    """Which life of the job, from 1; more than one when the run directory was used again."""
    cycle: int
    node: str
    rank: int | None
    pid: int | None
    what: str
    """In words, one line."""
    unnoticed_seconds: float
    """From the last sign of life until it was noticed; 0 where that is at once."""
    restart_seconds: float | None
    """From then until the ranks were started again; None when they never were."""
    resume_seconds: float | None
    """From then until the first rank trained again, as its heartbeats or steps show; None when none did."""
    outcome: str
    """What came of it, in words."""
    followers: tuple[int, ...] = ()
    """Ranks that failed or waited only because of it, by the `incident` event (64 at most); without one, those that
    failed after it in the same cycle."""
    verdict: str = ""
    """The verdict's sentence with its confidence; empty where no evidence was captured."""
    report: str = ""
    """The name of its report's directory in `incidents`; empty where there is none."""

    @property
    def lost_seconds(self) -> float | None:
        """Seconds without training: unnoticed, and then until the job trained again. None where it never did.

        Work since the last checkpoint, which is done twice, is not in it.
        """
        return None if self.resume_seconds is None else self.unnoticed_seconds + self.resume_seconds

    def to_dict(self) -> dict[str, Any]:
        """For JSON, `lost_seconds` included."""
        return {**asdict(self), "followers": list(self.followers), "lost_seconds": self.lost_seconds}


def incidents(events: Iterable[Event]) -> list[Incident]:
    """The incidents in a journal, from its events in order. Kinds that are not in `KINDS` change nothing."""
    sorter = CycleSorter()
    places: dict[tuple[int, int], _Cycle] = {}
    newest: _Cycle | None = None
    for event in events:
        place = sorter.cycle_of(event)
        if place not in places:
            if newest and newest.run != place[0]:
                newest.close(event)
            places[place] = newest = _Cycle(*place)
        cycle = places[place]
        if event.kind in _FIRSTS:
            cycle.firsts.setdefault((event.kind, event.source), event)
        if event.kind in _READERS:
            _READERS[event.kind](cycle, event)
    found: list[list[Incident]] = []
    following = start = again = None
    codes: set[str] = set()
    for cycle in reversed(places.values()):
        if following is not None and following.run != cycle.run:
            again = following  # the next life of the job begins with it
            following = start = None
        codes = cycle.codes if following is None else codes  # a node that left sooner is not the job
        found.append(
            [_incident(failure, cycle, following, start, codes, again) for failure in cycle.failures()]
        )
        following = cycle
        start = cycle if any(kind in _STARTS for kind, _ in cycle.firsts) else start
    in_order = sorted((each for part in reversed(found) for each in part), key=lambda each: each.t)
    return [replace(each, number=number) for number, each in enumerate(in_order, 1)]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Something that went wrong, and when and by which node it was noticed."""

    kind: str
    what: str
    node: str
    t: float
    mono: float
    source: str
    rank: int | None = None
    pid: int | None = None
    unnoticed: float = 0.0
    signal: str = ""
    status: int | None = None
    early: float = 0.0
    """Seconds by which it began before it was noticed: an exception has the time when it was raised."""
    followers: tuple[int, ...] = ()
    verdict: str = ""
    report: str = ""


def _failure(kind: str, event: Event, what: object, node: str = "", **more: Any) -> _Failure:
    return _Failure(kind, _line(what), node or _line(event.node), event.t, event.mono, event.source, **more)


_Process = tuple[str, int | None]
"""Source of the journal and pid: processes of two nodes may have the same number."""


@dataclass(slots=True)
class _Cycle:
    """What the list needs of a cycle's events."""

    run: int
    number: int
    hangs: list[_Failure] = field(default_factory=list)
    exits: list[_Failure] = field(default_factory=list)
    lost: dict[str, _Failure] = field(default_factory=dict)  # by node
    not_back: tuple[str, ...] = ()
    once: dict[str, _Failure] = field(default_factory=dict)  # by kind: one for all nodes
    restarts: tuple[Any, Any] = 0, 0  # used, and the most
    incident: Event | None = None
    verdict: Event | None = None  # the first that has a sentence
    codes: set[str] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)
    suspected: list[str] = field(default_factory=list)  # nodes, and what followed
    stays: dict[int | None, float] = field(default_factory=dict)  # ranks at their end: seconds until noticed
    firsts: dict[tuple[str, str], Event] = field(default_factory=dict)  # by kind and source
    pids: dict[str, dict[int, int | None]] = field(default_factory=dict)  # of ranks, by node
    begun: set[str] = field(default_factory=set)  # sources
    starts: dict[str, Event] = field(default_factory=dict)  # of launchers, by source
    stopping: set[str] = field(default_factory=set)  # sources
    failing: dict[_Process, object] = field(default_factory=dict)  # errors of ended main threads
    # Ranks that were signalled, however they end; with the signal: only if they end so.
    asked: set[_Process] = field(default_factory=set)
    passed_on: set[tuple[str, int | None, str]] = field(default_factory=set)
    preemptions: list[tuple[str, float, str]] = field(default_factory=list)  # source, time, signal

    def failures(self) -> Iterator[_Failure]:
        """Its failure, other nodes that were lost, its preemption, and the loss of the job."""
        own_ends = sorted(self.exits, key=lambda each: each.t - each.early)
        failed = [*self.hangs, *(each for each in own_ends if not self._is_preempted(each))]
        once = self.once
        lost = [*self.lost.values(), *(once[kind] for kind in ("launcher lost",) if kind in once)]
        others = [once[kind] for kind in ("excluded", "shutdown", "restart") if kind in once]
        chosen = self._judged(failed, lost) or next(iter((*lost, *failed, *others)), None)
        if chosen:
            followers = self._followers(failed) - {chosen.rank}
            report = self.incident.text("report").rpartition("/")[2] if self.incident else ""
            yield replace(chosen, followers=tuple(sorted(followers)), verdict=self._sentence(), report=report)
            yield from (each for each in self.lost.values() if each.node != chosen.node)
        if preemption := once.get("preemption"):
            yield replace(preemption, what="; ".join([preemption.what, *self.killed]))
        if "job lost" in once:
            yield once["job lost"]

    def _judged(self, failed: list[_Failure], lost: list[_Failure]) -> _Failure | None:
        """The failure by the evidence of all nodes, else by that of a monitor."""
        event = self.incident or self.verdict
        if event is None:
            return None
        cause, sentence = event.get("cause"), event.text("sentence")
        # A monitor's event has the rank that it acted on as well.
        rank = event.number("culprit" if event.kind == "verdict" else "rank")
        node = event.text("culprit_node")
        own = next((each for each in failed if each.rank == rank), None) if rank is not None else None
        noticed = (
            failed[0] if failed else _failure("hang", event, sentence, unnoticed=self.stays.get(rank, 0.0))
        )
        if cause == "elsewhere" and self.not_back:
            # The verdict was made before it was known which node that is.
            cause, node = "node_lost", self.not_back[0]
            end = f"rank {noticed.rank} failed: {noticed.what}" if noticed.rank is not None else sentence
            sentence = f"node {', '.join(self.not_back)} did not come back; {end}"
        if rank is None and cause in ("node_lost", "elsewhere"):
            if found := next((each for each in lost if node in ("", each.node)), None):
                return found
        if rank is None:
            kind, node = ("node lost", node) if cause == "node_lost" else (noticed.kind, noticed.node)
            return replace(noticed, kind=kind, node=node, what=sentence or noticed.what, rank=None, pid=None)
        kind = _OWN_END.get(str(cause)) or (own.kind if own else "hang")
        if own:
            return replace(own, kind=kind)
        source = next((source for source, pids in self.pids.items() if rank in pids), "")
        pid = self.pids[source][rank] if source else None
        return replace(
            noticed, kind=kind, what=sentence, node=source or node or noticed.node, rank=rank, pid=pid
        )

    def _followers(self, failed: list[_Failure]) -> set[int]:
        known = self.incident.get("followers") if self.incident else None
        numbers = known if isinstance(known, list) else [each.rank for each in failed]
        return {number for number in numbers if type(number) is int}

    def _sentence(self) -> str:
        """The verdict's, in one line, with its confidence."""
        event = self.incident or self.verdict
        sentence = event.text("sentence") if event else ""
        return f"{sentence} (confidence {event.get('confidence')})" if event and sentence else ""

    def _is_preempted(self, end: _Failure) -> bool:
        """Whether it died of the signal that its launcher got a moment later: a scheduler signals every process."""
        return any(
            source == end.source
            and (end.signal == signal or end.status == 128 + Signals.__members__.get(signal, -1000))
            and 0.0 <= at - end.mono <= SAME_MOMENT
            for source, at, signal in self.preemptions
        )

    # -- one event each ----------------------------------------------------------------------------------------

    def add_once(self, kind: str, event: Event, what: object, **more: Any) -> None:
        self.once.setdefault(kind, _failure(kind, event, what, **more))

    def read_verdict(self, event: Event) -> None:
        rank, pid = _who(event)
        where = [f"in {event.get('where')}"] if event.get("where") else []
        where += [f"step {event.get('step')}"] if event.get("step") is not None else []
        text = event.text("text") or event.text("reason") or "no sign of life"
        what, waited = f"{text} {', '.join(where)}", event.seconds("waited")
        self.hangs.append(_failure("hang", event, what, rank=rank, pid=pid, unnoticed=waited))
        if event.get("signal"):
            self.asked.add((event.source, pid))
        if self.verdict is None and event.get("sentence"):
            self.verdict = event

    def read_incident(self, event: Event) -> None:
        self.incident = event  # the last one: its report has replaced those before

    def read_signal_sent(self, event: Event) -> None:
        signal, reason, (rank, pid) = event.text("signal"), event.get("reason"), _who(event)
        # SIGUSR1 and 2 are passed on for the script's own ends, so only a death by them was asked for.
        # And a rank that finished, to which SIGINT is sent for a reason, ends with a code of its own.
        if signal in ("SIGUSR1", "SIGUSR2") or (signal == "SIGINT" and reason):
            self.passed_on.add((event.source, pid, signal))
        else:
            self.asked.add((event.source, pid))
        if event.get("by") == "launcher" and signal == "SIGKILL":
            self.killed.append(_line(f"rank {rank} {reason}"))

    def read_rank_failing(self, event: Event) -> None:
        self.failing[event.source, _who(event)[1]] = event.get("error")

    def read_rank_exit(self, event: Event) -> None:
        rank, pid = _who(event)
        signal, status = event.text("signal"), event.number("exitcode")
        process = event.source, pid
        if process not in self.failing:
            was_asked = (
                event.source in self.stopping
                or process in self.asked
                or (event.source, pid, signal) in self.passed_on
            )
            if was_asked or not (signal or event.get("exitcode")):
                return
        what, early = event.get("meaning") or f"exit code {event.get('exitcode')}", 0.0
        error = event.get("error") or self.failing.get(process)
        if isinstance(error, dict):
            early = max(0.0, event.mono - at) if isinstance(at := error.get("at"), (int, float)) else 0.0
            what = f"{error['type']}: {error.get('message', '')} ({what})" if error.get("type") else what
        kind = "crash" if signal or (status or 0) < 0 else "exit"
        end = _failure(kind, event, what, rank=rank, pid=pid, signal=signal, status=status, early=early)
        self.exits.append(end)

    def read_stop(self, event: Event) -> None:
        self.stopping.add(event.source)

    def read_preemption(self, event: Event) -> None:
        # All nodes of a job are signalled, often more than once: it is one preemption.
        signal = event.text("signal") or "a signal"
        self.stopping.add(event.source)
        self.preemptions.append((event.source, event.mono, signal))
        self.add_once("preemption", event, f"the launcher got {signal}")

    def read_node_lost(self, event: Event) -> None:
        waited, node = event.seconds("waited"), event.text("lost") or _line(event.node)
        what = f"no sign of node {node} for {waited:.1f} s"
        self.lost.setdefault(node, _failure("node lost", event, what, node, unnoticed=waited))

    def read_node_not_back(self, event: Event) -> None:
        names = event.get("lost")
        self.not_back = self.not_back or tuple(map(_line, names if isinstance(names, list) else ()))

    def read_exit_delayed(self, event: Event) -> None:
        self.stays[_who(event)[0]] = event.seconds("seconds")

    def read_node_suspected(self, event: Event) -> None:
        self.suspected.append(f"suspect: {event.text('facts') or event.text('suspect')}")

    def read_node_replaced(self, event: Event) -> None:
        node, instead = event.text("suspect"), event.text("instead")
        effect = f"node {instead} has taken its place" if instead else "the others have continued without it"
        sick = event.text("sick")
        self.suspected.append(
            f"node {node} is sick ({sick}): {effect}" if sick else f"node {node} is suspect: {effect}"
        )

    def read_job_lost(self, event: Event) -> None:
        why, host = event.text("reason") or "no reason given", event.text("host")
        if host:
            why = f"the node that hosts the rendezvous at {host} is gone: {why}"
        if host and not self.lost:
            self.lost[host] = _failure("node lost", event, why, host)
        elif host not in self.lost:
            self.add_once("job lost", event, why)

    def read_cycle_start(self, event: Event) -> None:
        self.begun.add(event.source)

    def read_run_start(self, event: Event) -> None:
        if event.source in self.begun:  # in the middle of the cycle that it had begun
            what = f"the launcher of node {event.node} was started again and had not written how it ended"
            self.add_once("launcher lost", event, what)
        self.starts[event.source] = event

    def close(self, event: Event) -> None:
        """The next life of the job begins with this event. Launchers of several nodes have other names in it."""
        if self.begun and not self.codes:
            what = "the job was started again, and its launchers had not written how it ended"
            names = ", ".join(sorted(self.begun))
            self.add_once("launcher lost", self.starts.get(event.source, event), what, node=names)

    def read_run_end(self, event: Event) -> None:
        self.begun.discard(event.source)
        self.codes.add(str(event.get("exit_code")))

    def read_node_excluded(self, event: Event) -> None:
        reason = event.get("reason") or "a rank asked for it"
        self.add_once("excluded", event, f"node {event.node} leaves the job: {reason}")

    def read_request(self, event: Event) -> None:
        if event.get("action") == "shutdown_workload":
            rank, pid = _who(event)
            what = f"a rank asked to end the whole job: {event.get('description')}"
            self.add_once("shutdown", event, what, rank=rank, pid=pid)

    def read_restart(self, event: Event) -> None:
        self.add_once("restart", event, event.get("reason") or "no reason given")
        self.restarts = event.get("restarts_used"), event.get("max_restarts")

    def read_rank_start(self, event: Event) -> None:
        rank, pid = _who(event)
        if rank is not None:
            self.pids.setdefault(event.node, {}).setdefault(rank, pid)


NOT_OVER = "not over yet, or its launcher was killed"
"""The outcome where the journal shows none."""
_STARTS = ("rank_start", "cycle_start")
_FIRSTS = frozenset((*_STARTS, "first_step", "first_heartbeat", "resume"))
_READERS: dict[str, Callable[[_Cycle, Event], None]] = {
    name.removeprefix("read_"): reader for name, reader in vars(_Cycle).items() if name.startswith("read_")
}
KINDS = _FIRSTS | _READERS.keys()
"""The kinds of events that the list is made of."""
COUNTED = KINDS - {"rank_start", "first_step", "first_heartbeat", "resume"}
"""Those that the number of incidents depends on; from the others are durations and process ids."""


def _incident(
    failure: _Failure,
    cycle: _Cycle,
    following: _Cycle | None,
    start: _Cycle | None,
    codes: set[str],
    again: _Cycle | None,
) -> Incident:
    """`following` is the next cycle of the run, `start` the next in which ranks started, `codes` are of its end.

    `again` is the first cycle of the next run.
    """
    if failure.kind == "launcher lost" and following is None and again:
        following = start = again
        outcome = "the job was started again"  # when: that is how it was noticed
    elif following and failure.kind != "job lost":
        is_free = failure.kind in ("restart", "excluded", "preemption")
        used, allowed = (0, 0) if is_free else cycle.restarts
        outcome = f"restarted ({used} of {allowed})" if used and allowed else "restarted"
    elif codes:
        outcome = f"the job ended with exit code {' or '.join(sorted(codes))}"
    else:
        outcome = "restarting" if "restart" in cycle.once else NOT_OVER
    if failure.kind not in ("preemption", "job lost"):
        outcome = "; ".join([outcome, *cycle.suspected])
    begun = _first(start, failure, "rank_start") or _first(start, failure, "cycle_start")
    # The next cycle only: when that one failed before it trained, the loss belongs to its own incident too.
    trained = _first(following, failure, "first_step", "first_heartbeat")
    trained = trained or _first(following, failure, "resume")
    return Incident(
        number=0,
        kind=failure.kind,
        t=failure.t,
        run=cycle.run,
        cycle=cycle.number,
        node=failure.node,
        rank=failure.rank,
        pid=failure.pid,
        what=failure.what,
        unnoticed_seconds=failure.unnoticed,
        restart_seconds=_between(failure, begun),
        resume_seconds=_between(failure, trained),
        outcome=outcome,
        followers=failure.followers,
        verdict="" if failure.kind in WITHOUT_EVIDENCE else failure.verdict,
        report=failure.report,
    )


def _first(cycle: _Cycle | None, failure: _Failure, *kinds: str) -> Event | None:
    """The first such event of the node that noticed, else of any: one machine's monotonic clock is more exact."""
    found = [event for (kind, _), event in cycle.firsts.items() if kind in kinds] if cycle else []
    return next((event for event in found if event.source == failure.source), next(iter(found), None))


def _between(failure: _Failure, later: Event | None) -> float | None:
    """Seconds, by the monotonic clock where one machine has both and did not start anew between them."""
    if later is None:
        return None
    if later.source != failure.source or later.mono < failure.mono:
        return round(max(0.0, later.t - failure.t), 3)
    at = later.get("at")  # a first step is reported when the monitor next scans, and has its own time
    at = at if isinstance(at, (int, float)) and 0 < at <= later.mono else later.mono
    return round(max(0.0, at - failure.mono), 3)


def _who(event: Event) -> tuple[int | None, int | None]:
    return event.number("rank"), event.number("pid")


def _line(text: object) -> str:
    return " ".join(str(text).split())
