"""The metrics of one launcher: their table, and their values from the journal's events and the boards. Pure.

Names and units follow Prometheus' conventions. Labels have a closed or bounded set of values. Every sample has `run_id`
and `node` too, so that the files of two jobs on one machine can be read together. A counter never decreases: the
incidents and the restart of a cycle are counted once, when its report is there or `REPORT` seconds after the next cycle
began.

Does not cover: what only the journals of other nodes have. A failure there is an incident of kind `restart` here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.journal.event import Event
from holdfast.journal.goodput import BUCKETS, PLANNED, goodput
from holdfast.journal.goodput import KINDS as OF_GOODPUT
from holdfast.journal.incidents import KINDS as OF_INCIDENTS
from holdfast.journal.incidents import Incident, incidents

from ..board.values import SECOND, Snapshot
from .progress import ProgressLog

EVENTS = 5000
"""The newest events, from which goodput is calculated: at least 100 cycles of 8 ranks."""
REPORT = 10.0
"""Seconds of the next cycle in which the report of an incident may still change its kind."""
READINGS = 30
"""The newest readings of steps, from which a rate is calculated."""


class Family(NamedTuple):
    """A metric; its name begins with `holdfast_`, and its meaning ends without a full stop."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


# fmt: off
FAMILIES = (
    Family("job_info", "gauge", ("version",), "Always 1; `version` is the one of Holdfast"),
    Family("job_state", "gauge", ("state",), "1 for the state of this launcher, 0 for the others"),
    Family("exit_code", "gauge", (), "Exit code of the launcher, once it has ended"),
    Family("cycle", "gauge", (), "Number of the cycle, from 0"),
    Family("ranks", "gauge", (), "Ranks of this node in the cycle"),
    Family("ranks_running", "gauge", (), "Ranks of this node that run"),
    Family("restarts_total", "counter", ("cause",), "Restarts, by the kind of incident that caused them, or `other`"),
    Family("incidents_total", "counter", ("kind",), "Incidents, by the kinds of `holdfast incidents`"),
    Family("last_failure_detect_seconds", "gauge", (),
           "Time to detect of the last failure: from the last sign of life until it was noticed"),
    Family("last_failure_resume_seconds", "gauge", (), "From then until the first rank trained again"),
    Family("goodput_seconds", "gauge", ("bucket",), "Where the time went, by the buckets of `holdfast goodput`"),
    Family("nodes_suspected", "gauge", (), "Nodes and node domains that failures have made suspect"),
    Family("spare_nodes", "gauge", (), "Nodes that wait for a place"),
    Family("straggler_findings", "gauge", ("kind",),
           "Slow ranks and nodes in the newest straggler report of rank 0, on its node"),
    Family("straggler_slowdown_ratio", "gauge", (), "Largest slowdown in it: 1.5 takes 50 % longer"),
    Family("rank_step", "gauge", ("local_rank",), "Last step of the rank; it may fall after a restart"),
    Family("rank_steps_per_second", "gauge", ("local_rank",), "Steps per second in the last minute of the cycle"),
    Family("rank_heartbeat_age_seconds", "gauge", ("local_rank",), "Time since the last heartbeat"),
    Family("rank_section_age_seconds", "gauge", ("local_rank", "section"), "Time since an open section began"),
    Family("rank_section_limit_seconds", "gauge", ("local_rank", "section"), "Timeout of an open section that has one"),
)
# fmt: on
STATES = ("starting", "running", "stopping", "restarting", "spare", "ended")
"""No rank of the cycle was started yet, ranks run, ranks are being stopped, the next cycle is being prepared, this node
waits for a place, the launcher has ended."""
INCIDENTS = (
    "hang", "crash", "exit", "node lost", "launcher lost", "job lost", "preemption", "excluded", "shutdown", "restart",
)  # fmt: skip
"""Kinds of incidents. Each counter begins with 0."""
STRAGGLERS = ("GPU", "host", "section", "collective/late arrival")
"""Kinds of straggler verdicts."""
EVENT_KINDS = OF_GOODPUT | OF_INCIDENTS
"""The kinds of events that are needed."""

_Found = dict[str, dict[tuple[str, ...], float | None]]
"""By name of the family, and the labels in its order; None: no value now."""


class JobMetrics:
    """The metrics of one life of a launcher. Not thread-safe. Times are monotonic seconds, boards are by local rank."""

    def __init__(self, run_id: str, node: str, version: str) -> None:
        self._fixed = {"run_id": run_id, "node": node}
        self._node, self._version = node, version
        self._events: list[Event] = []
        self._seconds: Mapping[str, float] = {}
        self._state, self._cycle, self._since = "starting", -1, 0.0  # since when the cycle runs
        self._exit_code: int | None = None
        self._ranks: dict[int, int] = {}  # local ranks of the cycle by pid
        self._running: dict[int, int] = {}
        self.has_rank_0 = False
        self._suspects: set[str] = set()
        self._open = {0}  # cycles that are not counted yet
        self._reported: set[int] = set()  # those of them that have a report
        self._incidents, self._restarts = Counter[str](), Counter[str]()
        self._last_failure: Incident | None = None
        self._steps: deque[tuple[float, int, dict[int, int]]] = deque(maxlen=READINGS)  # time, cycle, steps

    def take(self, event: Event) -> None:
        """The next event of this launcher's journal."""
        if event.kind == "progress":  # of each cycle the newest: its counts are of the cycle so far
            place = "progress", event.get("cycle")
            self._events = [each for each in self._events if (each.kind, each.get("cycle")) != place]
        self._events = [*self._events[-EVENTS:], event]
        kind, pid, cycle = event.kind, event.get("pid"), event.get("cycle")
        if kind == "cycle_start":
            self._open = self._open | {cycle} if self._cycle >= 0 else {cycle}
            self._state, self._cycle, self._since = "starting", cycle, event.mono
            self._ranks, self._running, self.has_rank_0 = {}, {}, False
        elif kind == "rank_start":
            self._state = "running"
            self.has_rank_0 |= event.get("rank") == 0
            self._ranks[pid] = self._running[pid] = event.get("local_rank")
        elif kind == "rank_exit":
            self._running.pop(pid, None)
        elif kind in ("stop", "preemption"):
            self._state = "stopping"
        elif kind == "restart":
            self._state = "restarting"
        elif kind == "incident":
            self._reported.add(cycle)
        elif kind == "node_suspected":
            self._suspects.add(event.get("suspect") or event.get("domain"))
        elif kind == "run_end":
            self._exit_code = event.get("exit_code")
            self.end()

    def end(self) -> None:
        """The launcher ends, whether its journal has that or not."""
        self._state, self._running = "ended", {}

    def account(self, t: float, now: float, boards: Mapping[int, Snapshot]) -> None:
        """Count the incidents, and find where the time until now (unix seconds: `t`) went."""
        events = self._events
        if self._state != "ended" and events:
            own = self._own(boards)
            last = next((each.fields for each in reversed(events) if each.kind == "progress"), {})
            fields = ProgressLog(self._cycle, now).event(now, own, "interval") if own else last
            events = [*events, Event("progress", t, now, self._node, fields, self._node)]
        found = incidents(events)
        self._count(found, now)
        self._seconds = goodput(events, found).seconds
        self._last_failure = next(
            (each for each in reversed(found) if each.kind not in PLANNED), self._last_failure
        )

    def _count(self, found: Sequence[Incident], now: float) -> None:
        """Count the incidents, and the restart, of each cycle that is over."""
        for cycle in sorted(self._open):
            is_final = cycle in self._reported or now - self._since >= REPORT
            if self._state == "ended" or (cycle < self._cycle and is_final):
                kinds = [each.kind for each in found if each.cycle == cycle]
                self._incidents.update(kinds)
                if cycle < self._cycle:
                    self._restarts[kinds[0] if kinds else "other"] += 1
                self._open.discard(cycle)
                self._reported.discard(cycle)

    def _own(self, boards: Mapping[int, Snapshot]) -> dict[int, Snapshot]:
        """The boards of this cycle: at its first event they may be those of the one before."""
        return {
            local: board
            for local, board in boards.items()
            if board.identity and board.identity.cycle == self._cycle
        }

    def text(
        self, now: float, boards: Mapping[int, Snapshot], spares: int, is_spare: bool, report: Event | None
    ) -> str:
        """The values now in Prometheus' text format; figures of the whole run are those of the last :meth:`account`.

        Args:
            spares: How many nodes wait for a place; `is_spare`: this one does.
            report: The newest `straggler_report` of rank 0.
        """
        state = "spare" if is_spare and self._state != "ended" else self._state
        failure = self._last_failure
        found: _Found = {
            "job_info": {(self._version,): 1},
            "job_state": {(each,): each == state for each in STATES},
            "exit_code": {(): self._exit_code},
            "cycle": {(): self._cycle if self._cycle >= 0 else None},
            "ranks": {(): len(self._ranks)},
            "ranks_running": {(): len(self._running)},
            "restarts_total": {(each,): self._restarts[each] for each in (*INCIDENTS, "other")},
            "incidents_total": {(each,): self._incidents[each] for each in INCIDENTS},
            "last_failure_detect_seconds": {(): failure.unnoticed_seconds if failure else None},
            "last_failure_resume_seconds": {(): failure.resume_seconds if failure else None},
            "goodput_seconds": {(each,): self._seconds.get(each, 0.0) for each in BUCKETS},
            "nodes_suspected": {(): len(self._suspects)},
            "spare_nodes": {(): spares},
            **self._of_ranks(now, self._own(boards)),
            **(_of_stragglers(report) if report else {}),
        }
        lines = []
        for family in FAMILIES:
            name = f"holdfast_{family.name}"
            lines += [f"# HELP {name} {family.meaning}", f"# TYPE {name} {family.type}"]
            for words, value in found.get(family.name, {}).items():
                labels = {**self._fixed, **dict(zip(family.labels, words, strict=True))}
                shown = ",".join(f'{label}="{_escaped(word)}"' for label, word in labels.items())
                lines += [f"{name}{{{shown}}} {round(float(value), 6)!r}"] if value is not None else []
        return "\n".join([*lines, ""])

    def _of_ranks(self, now: float, boards: Mapping[int, Snapshot]) -> _Found:
        """Of each rank that runs."""
        steps = {local: board.step for local, board in boards.items() if board.step is not None}
        self._steps.append((now, self._cycle, steps))
        found: _Found = {family.name: {} for family in FAMILIES if "local_rank" in family.labels}
        for local in self._running.values() & boards.keys():
            board, rank = boards[local], str(local)
            found["rank_step"][(rank,)] = board.step
            found["rank_steps_per_second"][(rank,)] = self._rate(local)
            if board.last_heartbeat_ns:
                found["rank_heartbeat_age_seconds"][(rank,)] = now - board.last_heartbeat_ns / SECOND
            for section in board.open_sections:
                place = rank, section.name
                found["rank_section_age_seconds"][place] = now - section.since_ns / SECOND
                found["rank_section_limit_seconds"][place] = board.limits.sections.get(section.name)
        return found

    def _rate(self, local: int) -> float | None:
        """Steps per second; None with fewer than two readings, and where the program has begun to count anew."""
        read = [
            (at, steps[local]) for at, cycle, steps in self._steps if cycle == self._cycle and local in steps
        ]
        if len(read) < 2 or read[-1][1] < read[0][1]:
            return None
        return (read[-1][1] - read[0][1]) / (read[-1][0] - read[0][0])


def _of_stragglers(report: Event) -> _Found:
    found = [(each["kind"], each["slowdown"]) for each in report.get("verdicts", ())]
    found += [(kind, slowdown) for _, kind, slowdown in report.get("further_verdicts", ())]
    kinds = Counter(kind for kind, _ in found)
    return {
        "straggler_findings": {(each,): kinds[each] for each in STRAGGLERS},
        "straggler_slowdown_ratio": {(): max([1.0, *(slowdown for _, slowdown in found)])},
    }


def _escaped(word: str) -> str:
    return word.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
