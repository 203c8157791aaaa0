"""What went wrong in a job: the journal's events read as a numbered list of incidents. Pure.

A cycle has one incident of its own at most: the first fault in it. What fails after that, in the same cycle, follows
from it (peers of a dead rank lose their connections) and is listed with it; only a preemption, and that a node could
not go on with the job afterwards, are incidents beside it. A node that is lost counts as the first
fault whenever it was noticed, since noticing takes longer than the peers' failing. What a launcher stopped or a
preemption ended is no fault. All durations begin when the fault was *noticed* and are taken from the monotonic clock
of the node that noticed it, so a wall clock that is set does no harm.

Does not cover: which of two ranks on different nodes failed first when it is closer than the nodes' clocks agree,
and why a rank failed beyond what the launcher could see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .cycles import Cycle, cycles
from .event import Event
from .faults import Fault, faults, verdicts

WITHOUT_EVIDENCE = frozenset(("preemption", "job lost", "shutdown", "restart", "excluded"))
"""Kinds of incidents for which none is taken."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that went wrong."""

    number: int
    """From 1, in the order of time."""
    kind: str
    """hang, crash (by a signal), exit (by itself), node lost, launcher lost, preemption, excluded, shutdown, job
    lost (no way to go on with it), restart (for another reason, such as a node that joins)."""
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
    """From then until the first rank trained again, as far as its heartbeats or steps tell; None when none did."""
    outcome: str
    """What came of it, in words."""
    followers: tuple[int, ...] = ()
    """Ranks that failed after this in the same cycle."""
    verdict: str = ""
    """The verdict's sentence with its confidence; empty where no evidence was taken."""

    @property
    def lost_seconds(self) -> float | None:
        """Seconds without training that are known of: unnoticed, and then until the job trained again.

        Work since the last checkpoint, which is done twice, is not in it.
        """
        return None if self.resume_seconds is None else self.unnoticed_seconds + self.resume_seconds

    def to_dict(self) -> dict[str, Any]:
        """For JSON, `lost_seconds` included."""
        return {**asdict(self), "followers": list(self.followers), "lost_seconds": self.lost_seconds}


def incidents(events: Iterable[Event]) -> list[Incident]:
    """The incidents in a journal, as `read_run` gives it."""
    sorted_cycles = cycles(events)
    found = [
        _incident(fault, cycle, sorted_cycles[index + 1 :])
        for index, cycle in enumerate(sorted_cycles)
        for fault in faults(cycle)
    ]
    found.sort(key=lambda incident: incident.t)
    return [_numbered(incident, number) for number, incident in enumerate(found, 1)]


def _numbered(incident: Incident, number: int) -> Incident:
    return Incident(**{**{name: getattr(incident, name) for name in incident.__slots__}, "number": number})


def _incident(fault: Fault, cycle: Cycle, later: Sequence[Cycle]) -> Incident:
    following = [other for other in later if other.run == cycle.run]
    teller = fault.noticed.teller
    begun = _first(following, teller, "rank_start") or _first(following, teller, "cycle_start")
    # The next cycle only: when that one failed before it trained, the loss belongs to its own incident too.
    trained = _first(following[:1], teller, "first_step", "first_heartbeat")
    resumed = trained or _first(following[:1], teller, "resume")
    return Incident(
        number=0,
        kind=fault.kind,
        t=fault.noticed.t,
        run=cycle.run,
        cycle=cycle.number,
        node=fault.node,
        rank=fault.rank,
        pid=fault.pid,
        what=fault.what,
        unnoticed_seconds=fault.unnoticed,
        restart_seconds=_between(fault.noticed, begun),
        resume_seconds=_between(fault.noticed, resumed),
        outcome=_outcome(fault, cycle, following),
        followers=fault.followers,
        verdict="" if fault.kind in WITHOUT_EVIDENCE else _verdict(cycle),
    )


def _verdict(cycle: Cycle) -> str:
    """Its sentence, in one line."""
    for event in verdicts(cycle):
        if sentence := " ".join(str(event.get("sentence") or "").split()):
            return f"{sentence} (confidence {event.get('confidence')})"
    return ""


def _first(among: Iterable[Cycle], teller: str, *kinds: str) -> Event | None:
    """The first such event of the teller, else of anybody: one machine's monotonic clock is the better measure."""
    found = [event for cycle in among for event in cycle.of_kind(*kinds)]
    own = [event for event in found if event.teller == teller]
    return next(iter(own or found), None)


def _between(noticed: Event, later: Event | None) -> float | None:
    """Seconds, by the monotonic clock where one machine tells both and did not start anew between them."""
    if later is None:
        return None
    if later.teller == noticed.teller and later.mono >= noticed.mono:
        return round(max(0.0, _moment(later) - noticed.mono), 3)
    return round(max(0.0, later.t - noticed.t), 3)


def _moment(event: Event) -> float:
    """When it happened, monotonic seconds: a first step is told when the monitor next looks, and says when it was."""
    at = event.get("at")
    return float(at) if isinstance(at, (int, float)) and 0 < at <= event.mono else event.mono


def _outcome(fault: Fault, cycle: Cycle, following: Sequence[Cycle]) -> str:
    if following and fault.kind not in ("preemption", "job lost"):
        return "restarted" + _count(fault, cycle)
    ends = [event for later in (cycle, *following) for event in later.of_kind("run_end")]
    if ends:
        codes = sorted({str(event.get("exit_code")) for event in ends})
        return f"the job ended with exit code {' or '.join(codes)}"
    return "restarting" if cycle.of_kind("restart") else "not over yet, or its launcher was killed"


def _count(fault: Fault, cycle: Cycle) -> str:
    """How many of the allowed restarts are spent; nothing for one that spends none."""
    restarts = cycle.of_kind("restart")
    used, allowed = (
        (restarts[-1].get("restarts_used"), restarts[-1].get("max_restarts")) if restarts else (0, 0)
    )
    spends_none = fault.kind in ("restart", "excluded")
    return f" ({used} of {allowed})" if used and allowed and not spends_none else ""
