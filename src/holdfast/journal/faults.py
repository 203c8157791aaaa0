"""What was the first thing to go wrong in a cycle, and what merely followed? Pure.

One function per kind of fault looks at the events of one cycle. What always holds: at most one fault of the training
per cycle, plus a preemption, plus the reason why a node could not go on with the job after it; an exit that the
launcher, the monitor or the preemption asked for is none.

Does not cover: faults whose cause no event tells; they appear as a restart with the launcher's own reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from signal import Signals

from .cycles import Cycle
from .event import Event
from .lost_connection import lost_connection

SAME_MOMENT = 1.0  # seconds in which a signal that was sent to all processes has reached them all


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing to go wrong; `noticed` is the event that tells it."""

    kind: str
    noticed: Event
    what: str
    node: str
    rank: int | None = None
    pid: int | None = None
    unnoticed: float = 0.0
    followers: tuple[int, ...] = ()
    named: bool = False  # by the launcher, as the reason why it stopped the ranks


def faults(cycle: Cycle) -> Iterator[Fault]:
    """The fault of this cycle's training, its preemption, and the job's loss after it: what there is of them."""
    found = [_as_told(fault, cycle) for fault in (*_hangs(cycle), *_exits(cycle))]
    found.sort(key=lambda fault: (not fault.named, fault.noticed.t - _earlier(fault.noticed)))
    lost = [*_lost_hosts(cycle), *_lost_nodes(cycle), *_lost_launchers(cycle), *_nodes_not_back(cycle, found)]
    first = next(iter(lost or found or [*_requests(cycle), *_other_restarts(cycle)]), None)
    if first and not lost:
        first = _as_judged(first, cycle)
    if first:
        others = {fault.rank for fault in found if fault.rank is not None} - {first.rank}
        yield replace(first, followers=tuple(sorted(others)))
    yield from _preemptions(cycle)
    yield from _lost_jobs(cycle)


def _as_told(fault: Fault, cycle: Cycle) -> Fault:
    """The launcher has read what the ranks left behind: whom it names as the reason is the first, in its words."""
    whom = f"rank {fault.rank} (node {fault.node}, pid {fault.pid}): "
    for event in cycle.of_kind("cause") or cycle.of_kind("stop"):
        reason = _line(event.get("reason"))
        if reason.startswith(whom):
            what = fault.what if fault.kind == "hang" else reason.removeprefix(whom)
            return replace(fault, named=True, what=what)
    return fault


def verdicts(cycle: Cycle) -> list[Event]:
    """What the evidence says: that of all nodes; only where no launcher lived to tell it, that of a monitor alone."""
    return cycle.of_kind("incident") or cycle.of_kind("verdict")


def _as_judged(first: Fault, cycle: Cycle) -> Fault:
    """Who did it by the evidence, where that is more than a guess and another one than noticed it."""
    for event in verdicts(cycle):
        rank = _number(event.get("culprit")) if event.kind == "verdict" else _who(event)[0]
        sure = event.get("confidence") in ("high", "medium")
        if rank is None or rank == first.rank or not sure:
            continue
        started = next((each for each in cycle.of_kind("rank_start") if _who(each)[0] == rank), None)
        return replace(
            first,
            kind=_KINDS.get(_line(event.get("cause")), first.kind),
            what=_line(event.get("sentence")),
            node=started.node if started else _line(event.get("culprit_node") or first.node),
            rank=rank,
            pid=_who(started)[1] if started else None,
        )
    return first


_KINDS = {
    "exception": "exit",
    "exit": "exit",
    "early_exit": "exit",
    "signal": "crash",
    "out_of_memory": "crash",
}
"""What the list calls a rank's own end, by the kind of verdict; the others are hangs or keep their name."""


def _earlier(event: Event) -> float:
    """Seconds by which an exit began before it was seen: an exception knows when it was raised."""
    error = event.get("error")
    at = error.get("at") if isinstance(error, dict) else None
    return max(0.0, event.mono - at) if isinstance(at, (int, float)) else 0.0


def _hangs(cycle: Cycle) -> Iterator[Fault]:
    for event in cycle.of_kind("verdict"):
        where = event.get("where")
        step = event.get("step")
        details = [f"in {where}"] if where else []
        details += [f"step {step}"] if step is not None else []
        text = _line(event.get("text") or event.get("reason") or "no sign of life")
        yield Fault(
            kind="hang",
            noticed=event,
            what=" ".join([text, ", ".join(details)]).strip(),
            node=event.node,
            rank=_who(event)[0],
            pid=_who(event)[1],
            unnoticed=_seconds(event.get("waited")),
        )


def _exits(cycle: Cycle) -> Iterator[Fault]:
    """Failures that nobody asked for. Several nodes tell: each is judged by what it had done before."""
    stopping: set[str] = set()
    asked: set[tuple[str, int | None, str | None]] = set()  # who signalled which pid with what
    preempted = [
        (event.teller, event.mono, _line(event.get("signal"))) for event in cycle.of_kind("preemption")
    ]
    blamed = {
        _who(event)[1] for event in cycle.of_kind("cause")
    }  # it took longer to end than its peers to notice
    for event in cycle.events:
        teller, (_, pid), signal = event.teller, _who(event), _line(event.get("signal"))
        if event.kind in ("stop", "preemption"):
            stopping.add(teller)
        elif event.kind == "verdict" and event.get("signal"):
            asked.add((teller, pid, None))  # whatever it was signalled with: it was meant to end
        elif event.kind == "signal_sent":
            # SIGUSR1 and 2 are passed on for the script's own ends, so only a death by them was asked for.
            asked.add((teller, pid, signal if signal in ("SIGUSR1", "SIGUSR2") else None))
        elif event.kind == "rank_exit" and _failed(event) and (teller not in stopping or pid in blamed):
            told = any(teller == who and _died_of(event, name, at) for who, at, name in preempted)
            if not told and not asked & {(teller, pid, None), (teller, pid, signal)}:
                yield _exit(event)


def _died_of(event: Event, signal: str, at: float) -> bool:
    """Whether a rank died of the signal that its launcher got a moment later: a scheduler sends it to every process."""
    number = getattr(Signals, signal, None)
    same = event.get("signal") == signal or (number is not None and event.get("exitcode") == 128 + number)
    return same and 0.0 <= at - event.mono <= SAME_MOMENT


def _failed(event: Event) -> bool:
    return bool(event.get("signal") or event.get("exitcode"))


def _exit(event: Event) -> Fault:
    by_signal = bool(event.get("signal")) or (_number(event.get("exitcode")) or 0) < 0
    meaning = event.get("meaning") or f"exit code {event.get('exitcode')}"
    error = event.get("error")
    if isinstance(error, dict) and error.get("type"):
        meaning = f"{error['type']}: {error.get('message', '')} ({meaning})"
    return Fault(
        kind="crash" if by_signal else "exit",
        noticed=event,
        what=_line(meaning),
        node=event.node,
        rank=_who(event)[0],
        pid=_who(event)[1],
    )


def _lost_nodes(cycle: Cycle) -> Iterator[Fault]:
    for event in cycle.of_kind("node_lost"):
        waited, lost = _seconds(event.get("waited")), str(event.get("lost") or event.node)
        what = f"no sign of node {lost} for {waited:.1f} s"
        yield Fault("node lost", event, _line(what), lost, unnoticed=waited)


def _lost_hosts(cycle: Cycle) -> Iterator[Fault]:
    """The rendezvous host: every node that is left tells of it, and none can go on."""
    for event in cycle.of_kind("job_lost"):
        if event.get("host"):
            host = _line(event.get("host"))
            what = f"the node that hosts the rendezvous at {host} is gone: {event.get('reason')}"
            yield Fault("node lost", event, _line(what), host)


def _lost_jobs(cycle: Cycle) -> Iterator[Fault]:
    """Other reasons why a node cannot go on, such as that too few came back; the first node's is enough."""
    for event in [event for event in cycle.of_kind("job_lost") if not event.get("host")][:1]:
        yield Fault("job lost", event, _line(event.get("reason") or "no reason told"), event.node)


def _lost_launchers(cycle: Cycle) -> Iterator[Fault]:
    """A launcher that starts in the middle of the cycle that it had begun: it never wrote how it ended."""
    begun: set[str] = set()
    for event in cycle.events:
        if event.kind == "cycle_start":
            begun.add(event.teller)
        elif event.kind == "run_end":
            begun.discard(event.teller)
        elif event.kind == "run_start" and event.teller in begun:
            what = f"the launcher of node {event.node} was started again and had not written how it ended"
            yield Fault("launcher lost", event, what, event.node)


def _nodes_not_back(cycle: Cycle, found: list[Fault]) -> Iterator[Fault]:
    """Nodes that take no part in the next cycle, where all that failed here had lost its connection to a peer.

    A launcher that is killed takes its ranks along and tells nobody, so this is all that is ever known of it.
    """
    if not found or not all(lost_connection(fault.noticed.get("error")) for fault in found):
        return
    first = found[0]
    for event in cycle.of_kind("node_not_back"):
        names = [str(name) for name in _list(event.get("lost"))]
        if names:
            who = f"node{'s' if len(names) > 1 else ''} {', '.join(names)}"
            what = f"{who} did not come back; rank {first.rank} lost its connection: {first.what}"
            yield Fault("node lost", first.noticed, _line(what), names[0])


def _requests(cycle: Cycle) -> Iterator[Fault]:
    for event in cycle.of_kind("node_excluded"):
        text = event.get("reason") or "a rank asked for it"
        yield Fault("excluded", event, _line(f"node {event.node} leaves the job: {text}"), event.node)
    for event in cycle.of_kind("request"):
        if event.get("action") == "shutdown_workload":
            what = f"a rank asked to end the whole job: {event.get('description')}"
            yield Fault("shutdown", event, _line(what), event.node, *_who(event))


def _other_restarts(cycle: Cycle) -> Iterator[Fault]:
    for event in cycle.of_kind("restart"):
        yield Fault("restart", event, _line(event.get("reason") or "no reason told"), event.node)


def _preemptions(cycle: Cycle) -> Iterator[Fault]:
    """All nodes of a job are told, often more than once: it is one preemption."""
    for event in cycle.of_kind("preemption")[:1]:
        name = event.get("signal") or "a signal"
        killed = [
            f"rank {sent.get('rank')} {sent.get('reason')}"
            for sent in cycle.of_kind("signal_sent")
            if sent.get("by") == "launcher" and sent.get("signal") == "SIGKILL"
        ]
        what = "; ".join([f"the launcher got {name}", *killed])
        yield Fault("preemption", event, _line(what), event.node)


def _who(event: Event) -> tuple[int | None, int | None]:
    return _number(event.get("rank")), _number(event.get("pid"))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return round(max(0.0, float(value)), 3)
    return 0.0
