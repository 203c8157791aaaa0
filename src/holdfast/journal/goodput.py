"""Where the time of a job went: each second of its wall-clock time in one of `BUCKETS`. Pure.

An *attempt* is one life of the job (a *run* of :mod:`.event`), a cycle one start of its ranks. The time between two
attempts is waiting; in an attempt the borders are the starts of cycles, the first step of each, the moment when a
failure began, when it was noticed, and when the ranks were stopped. Of the time between a cycle's first step and its
end, a suspension of a node is waiting; what the sections of its `progress` events show is checkpointing, validation or
waiting for data, the mean of all ranks; the rest is training. Of that the share is lost whose steps a later cycle has
done again.

What always holds: the buckets of an attempt add up to its wall-clock time, whatever events are missing.
Does not cover: the time in a scheduler's queue before the first attempt; steps after the last checkpoint of a job that
was not continued, which count as training; the last 10 s of a launcher that was killed; steps that were counted and not
reported, of which none are known as lost; clocks of nodes that differ by less than 2 s, and one that is set back;
sections that are open in some ranks only, whose mean is taken; a section's time before the first step, and of ranks
that waited in it for the one that hung, which is taken for time of training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from .event import CycleSorter, Event
from .incidents import Incident

BUCKETS = MappingProxyType(
    {
        "training": "steps that no later cycle has done again",
        "lost": "steps that a later cycle has done again",
        "checkpointing": "the section `checkpointing`",
        "validation": "the sections `validation`, `evaluation` and `eval`",
        "data": "waiting for data: the sections `data_loading` and `dataloader`",
        "start-up": "from the launcher's start to the first step of the attempt",
        "undetected": "from the last sign of life of a rank that failed until that was noticed; of a lost node, "
        "from when the others stopped",
        "restart": "from then, or from a stop for another reason, to the first step of the next cycle",
        "stopping": "from a preemption, or the end of the last rank's program, to the launchers' end",
        "waiting": "between two attempts (the scheduler's queue, a pause of auto-resume), or while suspended",
        "unknown": "what the journal does not show",
    }
)
"""Every bucket, and what is in it."""
SECTIONS = MappingProxyType(
    {
        "checkpointing": "checkpointing",
        "validation": "validation",
        "evaluation": "validation",
        "eval": "validation",
        "data_loading": "data",
        "dataloader": "data",
    }
)
"""The bucket of a section."""
PLANNED = frozenset(("preemption", "shutdown", "restart", "excluded"))
"""Kinds of incidents that are no failures: the cycle ends with its `stop`."""
KINDS = frozenset(
    (
        "run_start", "run_end", "cycle_start", "first_step", "first_heartbeat", "resume", "progress", "stop", "restart",
        "preemption", "incident", "verdict", "launcher_exit", "gap",
    )
)  # fmt: skip
"""The kinds of events that this is made of."""


@dataclass(slots=True)
class Segment:
    """One cycle."""

    run: int
    cycle: int
    begun: float
    trained: float | None = None
    """When its first rank trained; unix seconds, as all times here."""
    stopped: float | None = None
    finished: dict[str, float] = field(default_factory=dict)
    """By node all of whose ranks came to the end of their program, when the last of them did."""
    active: dict[str, float] = field(default_factory=dict)
    """By node that ended it, until when all of its ranks showed activity."""
    sources: set[str] = field(default_factory=set)
    """Nodes that began it."""
    gone: set[str] = field(default_factory=set)
    """Those of them that ended with it."""
    goes_on: bool = False
    """Its incident is a report on a rank at its end, and the job continued."""
    first: int | None = None
    """The step with which it began, and the last it came to; None: not known."""
    last: int | None = None
    kept: int | None = None
    """The last step that no later cycle has done again."""
    counted: bool = False
    """Its steps were counted from the start of each process: which of them are done again is not known."""
    suspended: list[tuple[float, float]] = field(default_factory=list)
    """From when until when, of each time that a node was suspended."""
    hung: dict[str, float] = field(default_factory=dict)
    """Seconds of ranks that hung in a section, by bucket."""
    progress: dict[str, Event] = field(default_factory=dict)
    """The newest `progress` event, by source."""
    sections: dict[str, float] = field(default_factory=dict)
    """Mean seconds of a rank, by bucket."""

    @property
    def lost_steps(self) -> int:
        """How many steps later cycles have done again."""
        return 0 if self.last is None or self.kept is None else self.last - self.kept

    def take(self, event: Event, now: float) -> None:
        """An event of this cycle, in their order; `now` is its time."""
        if event.kind in ("first_step", "first_heartbeat", "resume"):
            at = event.get("at")  # the monitor reports it when it next scans
            late = event.mono - at if isinstance(at, (int, float)) and 0 < at <= event.mono else 0.0
            began = max(self.begun, now - late)
            self.trained = began if self.trained is None else min(self.trained, began)
            if event.kind == "first_step" and (step := _step(event, "step")) is not None:
                self.first = step if self.first is None else min(self.first, step)
        elif event.kind == "verdict":
            for bucket in (SECTIONS[name] for name in event.text("where").split(" > ") if name in SECTIONS):
                self.hung[bucket] = self.hung.get(bucket, 0.0) + event.seconds("waited")
        elif event.kind == "gap":
            self.suspended.append((now - event.seconds("seconds"), now))
        elif event.kind == "incident":
            self.goes_on = bool(event.get("job_goes_on"))
        elif event.kind in ("stop", "preemption", "restart", "run_end") and event.source in self.sources:
            self.gone.update([event.source] if event.kind == "run_end" else [])
            if self.stopped is None and (event.kind != "run_end" or self.gone >= self.sources):
                self.stopped = now
        elif event.kind == "progress":
            self.progress[event.source] = event
            for name, moments in ("inactive", self.active), ("finished", self.finished):
                if event.get("reason") == "cycle_end" and _is_amount(ago := event.get(name)):
                    moments[event.source] = now - ago

    def take_progress(self) -> None:
        """The steps and sections of the newest `progress` event of each node."""
        newest = list(self.progress.values())
        self.counted = any(event.get("counted") for event in newest)
        steps = [step for event in newest if (step := _step(event, "steps_most")) is not None]
        self.last = self.kept = max(steps, default=None)
        ranks = sum(max(0, event.number("ranks") or 0) for event in newest)
        for event in newest:
            sections = event.get("sections")
            for name, spent in sections.items() if isinstance(sections, dict) else ():
                seconds = spent.get("seconds") if isinstance(spent, dict) else None
                if name in SECTIONS and ranks and isinstance(seconds, (int, float)) and seconds > 0:
                    bucket = SECTIONS[name]
                    self.sections[bucket] = self.sections.get(bucket, 0.0) + seconds / ranks
        for bucket, waited in self.hung.items():
            if ranks and bucket in self.sections:
                self.sections[bucket] = max(0.0, self.sections[bucket] - waited / ranks)


@dataclass(frozen=True, slots=True)
class Span:
    """A time of one attempt (a life of the job), or of all of it."""

    run: int
    cycle: int | None
    """None: all of it, between this attempt and the next, or an attempt without cycles."""
    begun: float
    ended: float
    seconds: dict[str, float]
    """By bucket, without those that are 0; they add up to its length."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Steps per second between two `progress` events of a node."""

    begun: float
    ended: float
    steps: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """The whole job."""

    begun: float
    ended: float
    seconds: dict[str, float]
    """By bucket, in the order of `BUCKETS`; they add up to `wall`."""
    attempts: tuple[Span, ...]
    cycles: int
    lost_steps: int | None
    """Steps that later cycles have done again; None where that is not known, since steps were counted."""
    failures: int
    by_kind: dict[str, int]
    """Failures by kind of incident, and by machine."""
    by_node: dict[str, int]
    seconds_to_detect: float | None
    """Mean of the failures; None without one. To recover: from the notice until a rank trained again."""
    seconds_to_recover: float | None
    spans: tuple[Span, ...]
    """In the order of time, without gaps."""
    rates: tuple[Rate, ...]
    """In each cycle those of the node that reported first: ranks that train together do the same steps."""

    @property
    def wall(self) -> float:
        """Seconds from the first launcher's start to the end of the last one, or to the last event."""
        return self.ended - self.begun

    @property
    def share(self) -> float:
        """The goodput: the share of that time that was training and was kept."""
        return self.seconds["training"] / self.wall if self.wall else 0.0

    @property
    def seconds_between_failures(self) -> float | None:
        """Mean, of the whole time; None without a failure."""
        return self.wall / self.failures if self.failures else None


@dataclass(frozen=True, slots=True)
class JobNow:
    """What a journal shows of a job at one moment."""

    ledger: Goodput | None = None
    """None before the first event."""
    incidents: Sequence[Incident] = ()
    progress: Sequence[Event] = ()
    """The newest `progress` event of each node in this cycle; of a job that has ended none."""
    end: str = ""
    """How the job, or some of its launchers, ended; empty while all run, as far as is known here."""


NOTHING = JobNow()
"""Before it is read."""


def goodput(events: Iterable[Event], found: Sequence[Incident], now: float = 0.0) -> Goodput:
    """Account for the time of a job.

    Args:
        events: Of all nodes in the order of time (`reader.stream_run`); those that are not in `KINDS` change nothing.
        now: Of a job that runs, until when; else it is accounted for until its last event.
    """
    segments, lives, rates = _read(events)
    newest = max(lives, default=0)
    if segments and (newest > segments[-1].run or not segments[-1].gone >= segments[-1].sources):
        begun, ended = lives[newest]
        lives[newest] = begun, max(ended, now)
    _find_lost(segments)
    goes_on = {(each.run, each.cycle) for each in segments if each.goes_on}
    failures = [each for each in found if each.kind not in PLANNED and (each.run, each.cycle) not in goes_on]
    failed = {(each.run, each.cycle): each for each in reversed(failures)}
    by_run: dict[int, list[Segment]] = {run: [] for run in lives}
    for segment in segments:
        by_run[segment.run].append(segment)
    attempts: list[Span] = []
    spans: list[Span] = []
    for run, (begun, ended) in lives.items():
        if attempts and begun > attempts[-1].ended:
            last = by_run[attempts[-1].run][-1:]
            is_known = bool(last) and last[0].gone >= last[0].sources
            between = {"waiting" if is_known else "unknown": begun - attempts[-1].ended}
            spans.append(Span(attempts[-1].run, None, attempts[-1].ended, begun, between))
        own = _account(run, by_run[run], failed, begun, ended)
        attempts.append(Span(run, None, begun, ended, _sum(own)))
        spans += own
    recovered = [each.resume_seconds for each in failures if each.resume_seconds is not None]
    return Goodput(
        begun=attempts[0].begun if attempts else 0.0,
        ended=attempts[-1].ended if attempts else 0.0,
        seconds={**dict.fromkeys(BUCKETS, 0.0), **_sum(spans)},
        attempts=tuple(attempts),
        cycles=len(segments),
        lost_steps=None
        if any(each.counted for each in segments)
        else sum(each.lost_steps for each in segments),
        failures=len(failures),
        by_kind=dict(Counter(each.kind for each in failures).most_common()),
        by_node=dict(Counter(each.node.partition(":")[0] for each in failures).most_common()),
        seconds_to_detect=_mean([each.unnoticed_seconds for each in failures]),
        seconds_to_recover=_mean(recovered),
        spans=tuple(spans),
        rates=tuple(rates),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _sum(spans: Iterable[Span]) -> dict[str, float]:
    """Their seconds by bucket."""
    found: dict[str, float] = {}
    for span in spans:
        for bucket, spent in span.seconds.items():
            found[bucket] = found.get(bucket, 0.0) + spent
    return found


_Lives = dict[int, tuple[float, float]]


def _read(events: Iterable[Event]) -> tuple[list[Segment], _Lives, list[Rate]]:
    """The cycles, of each attempt when it began and ended, and step rates. Times never go back."""
    sorter = CycleSorter()
    segments: dict[tuple[int, int], Segment] = {}
    lives: _Lives = {}
    rates: list[Rate] = []
    reporters: dict[tuple[int, int], str] = {}  # the node that reported first
    has_cycles: set[int] = set()  # runs
    started_again: float | None = None  # a launcher, in a run that had begun: the next attempt may begin here
    now = float("-inf")
    for event in events:
        if event.kind not in KINDS:
            continue
        place, now = sorter.cycle_of(event), max(now, event.t)
        run = place[0]
        is_start = event.kind == "run_start"
        age = event.get("age") if is_start else 0.0  # of the launcher's process
        begun = now - (age if _is_amount(age) else 0.0)
        if is_start and run in has_cycles:
            started_again = begun if started_again is None else started_again
            continue
        if is_start or run not in lives:
            first = min(begun, lives.get(run, (begun, now))[0])
            begun = first if started_again is None else started_again
            before = max((ended for other, (_, ended) in lives.items() if other != run), default=begun)
            lives[run] = max(begun, before), now
        lives[run] = lives[run][0], now
        if event.kind in ("cycle_start", "run_end", "progress"):
            started_again = None  # where there is progress, it waits for a place in a job that runs on
        if event.kind == "cycle_start":
            has_cycles.add(run)
            segments.setdefault(place, Segment(*place, begun=now)).sources.add(event.source)
        if (segment := segments.get(place)) is None:
            continue
        segment.take(event, now)
        if event.kind == "progress" and reporters.setdefault(place, event.source) == event.source:
            took, steps = event.get("seconds"), event.get("step_rate")
            if _is_amount(took) and _is_amount(steps):
                rates.append(Rate(now - took, now, float(steps)))
    if started_again is not None:  # it waits for other nodes, or for imports
        lives[max(lives) + 1] = max(started_again, lives[max(lives)][1]), now
    for segment in segments.values():
        segment.take_progress()
    return list(segments.values()), lives, rates


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < 1e300


def _step(event: Event, name: str) -> int | None:
    """A step that the program has reported; one that was counted shows nothing of other cycles."""
    value = event.get(name)
    return value if type(value) is int and not event.get("counted") else None


def _find_lost(segments: Sequence[Segment]) -> None:
    """A cycle that begins at an earlier step has the steps of those before it done again from there."""
    begins: int | None = None  # the lowest step with which a later cycle begins
    for segment in reversed(segments):
        if segment.kept is not None and begins is not None:
            least = segment.kept if segment.first is None else segment.first - 1
            segment.kept = max(least, min(segment.kept, begins - 1))
        if segment.first is not None:
            begins = segment.first if begins is None else min(begins, segment.first)


def _account(
    run: int, segments: Sequence[Segment], failed: dict[tuple[int, int], Incident], begun: float, ended: float
) -> list[Span]:
    """The time of one attempt."""
    spans: list[Span] = []
    at, cycle = begun, segments[0].cycle if segments else None

    def until(moment: float, bucket: str, trained: Segment | None = None) -> None:
        """The time up to this moment, or to the attempt's end, is in this bucket; or it is the segment's training."""
        nonlocal at
        moment = min(max(moment, at), ended)
        if moment > at:
            seconds = _divide(trained, at, moment) if trained else {bucket: moment - at}
            spans.append(Span(run, cycle, at, moment, seconds))
            at = moment

    for number, segment in enumerate(segments):
        follows = segments[number + 1].begun if number + 1 < len(segments) else None
        incident = failed.get((segment.run, segment.cycle))
        cycle = segment.cycle
        until(segment.begun, "start-up" if number == 0 else "restart")
        noticed = incident.t if incident else segment.stopped
        if not incident and noticed is not None and segment.finished.keys() >= segment.sources:
            noticed = min(noticed, max(segment.finished.values()))
        latest = ended if follows is None else follows
        is_open = noticed is None and follows is not None
        noticed = latest if noticed is None else min(noticed, latest)
        failing = noticed - (incident.unnoticed_seconds if incident else 0.0)
        if incident and incident.kind == "node lost" and segment.active:
            # Its last sign of life is older than its end; the others have stopped because it is missing.
            failing = max(failing, min(noticed, *segment.active.values()))
        if segment.trained is None:
            until(failing, "unknown" if not incident else "start-up" if number == 0 else "restart")
        elif is_open:
            until(noticed, "unknown")  # its launchers were killed in it, or their journals are not there
        else:
            until(segment.trained, "start-up" if number == 0 else "restart")
            until(failing, "training", segment)
        until(noticed, "undetected")
        until(ended if follows is None else follows, "stopping" if follows is None else "restart")
    until(ended, "unknown")
    return spans


def _divide(segment: Segment, begun: float, ended: float) -> dict[str, float]:
    """The time between the first step and the end of a cycle: what is no training, what was lost, and the rest."""
    seconds = {"waiting": 0.0}
    until = begun
    for since, end in sorted(segment.suspended):
        since, end = max(since, until), min(end, ended)
        if end > since:
            seconds["waiting"], until = seconds["waiting"] + end - since, end
    left = ended - begun - seconds["waiting"]
    for bucket, spent in segment.sections.items():
        seconds[bucket] = min(spent, left)
        left -= seconds[bucket]
    steps = 0 if segment.first is None or segment.last is None else segment.last - segment.first + 1
    seconds["lost"] = left * min(1.0, segment.lost_steps / steps) if steps > 0 else 0.0
    seconds["training"] = left - seconds["lost"]
    return {bucket: spent for bucket, spent in seconds.items() if spent}
