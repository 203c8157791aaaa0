"""The metrics of one launcher: their table, and their values from the journal's events and the boards. Pure.

Names and units follow Prometheus' conventions. Labels have a closed or bounded set of values. Every sample has `run_id`
and `node` too, so the files of two jobs on one machine can be read together. A counter never decreases: the incidents
and the restart of a cycle are counted once, `REPORT` seconds after the next cycle began.

Does not cover: what only the journals of other nodes have. A failure there is an incident of kind `restart` here.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.journal.event import Event
from holdfast.journal.goodput import BUCKETS, PLANNED, goodput
from holdfast.journal.goodput import KINDS as OF_GOODPUT
from holdfast.journal.incidents import KINDS as OF_INCIDENTS
from holdfast.journal.incidents import Incident, incidents

from ..board.values import SECOND, Snapshot
from .progress import ProgressLog

EVENT_KINDS = OF_GOODPUT | OF_INCIDENTS
"""The kinds of events that are needed."""
EVENTS, READINGS = 2000, 30
"""How many of the newest events are kept (80 cycles of 8 ranks have fewer), and of the readings of steps."""
REPORT, ACCOUNT = 5.0, 30.0
"""Seconds after which the kind of an incident no longer changes, and between two accounts of the job's time."""


class Family(NamedTuple):
    """A metric. Its full name begins with `holdfast_`."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


# fmt: off
FAMILIES = (
    Family("job_state", "gauge", ("state",), "1 for the state of this launcher, 0 for the others"),
    Family("exit_code", "gauge", (), "Exit code of the launcher, once it has ended"),
    Family("cycle", "gauge", (), "Number of the cycle, from 0"),
    Family("ranks", "gauge", (), "Ranks of this node in the cycle"),
    Family("ranks_running", "gauge", (), "Ranks of this node that run"),
    Family("restarts_total", "counter", ("cause",), "Restarts, by the kind of incident before them, or `other`"),
    Family("incidents_total", "counter", ("kind",), "Incidents, by the kinds of `holdfast incidents`"),
    Family("last_failure_detect_seconds", "gauge", (), "Last failure: from the last sign of life to its notice"),
    Family("last_failure_resume_seconds", "gauge", (), "From then until the first rank trained again"),
    Family("goodput_seconds", "gauge", ("bucket",), "Where the time went, by the buckets of `holdfast goodput`"),
    Family("nodes_suspected", "gauge", (), "Nodes and node domains that failures have made suspect"),
    Family("spare_nodes", "gauge", (), "Nodes that wait for a place"),
    Family("straggler_findings", "gauge", (), "Slow ranks and nodes (64 at most) in rank 0's newest straggler report"),
    Family("straggler_slowdown_ratio", "gauge", (), "Largest slowdown in that report: 1.5 takes 50 % longer"),
    Family("rank_step", "gauge", ("local_rank",), "Last step of the rank; it may fall after a restart"),
    Family("rank_steps_per_second", "gauge", ("local_rank",), "Steps per second in the last minute of the cycle"),
    Family("rank_heartbeat_age_seconds", "gauge", ("local_rank",), "Time since the last heartbeat"),
    Family("rank_section_age_seconds", "gauge", ("local_rank", "section"), "Time since an open section began"),
    Family("rank_section_limit_seconds", "gauge", ("local_rank", "section"), "Timeout of an open section that has one"),
)
# fmt: on
STATES = ("starting", "running", "stopping", "restarting", "spare", "ended")
STATE_AFTER = {
    "cycle_start": "starting", "rank_start": "running", "stop": "stopping", "preemption": "stopping",
    "restart": "restarting",
}  # fmt: skip
"""By kind of event."""
INCIDENTS = (
    "hang", "crash", "exit", "node lost", "launcher lost", "job lost", "preemption", "excluded", "shutdown", "restart",
)  # fmt: skip
"""Kinds of incidents. Each counter begins with 0."""


Samples = dict[str, float | dict[tuple[str, ...], float | None] | None]
"""By name of the metric: the value, or by the values of its labels; None for what there is not."""


class JobMetrics:
    """The metrics of one life of a launcher. Not thread-safe. Times are monotonic seconds."""

    def __init__(self, run_id: str, node: str) -> None:
        self._run_id, self._node = run_id, node
        self._events: list[Event] = []
        self._state, self._cycle, self._since = "starting", -1, 0.0  # since when the cycle runs
        self._exit_code: int | None = None
        self._ranks = 0  # of the cycle
        self._running: dict[int, int] = {}  # local ranks by pid
        self.has_rank_0 = False
        self._suspects: set[str] = set()
        self._uncounted = {0}  # cycles
        self._incidents, self._restarts = Counter[str](), Counter[str]()
        self._last_failure: Incident | None = None
        self._seconds: Mapping[str, float] = {}
        self._accounted = -ACCOUNT
        self._steps: deque[tuple[float, int, dict[int, int]]] = deque(maxlen=READINGS)  # time, cycle, by rank

    def take(self, event: Event) -> None:
        """The next event of this launcher's journal."""
        kind, cycle = event.kind, event.get("cycle")
        if kind == "progress":  # of each cycle the newest: its counts are of the cycle so far
            self._events = [each for each in self._events if (each.kind, each.get("cycle")) != (kind, cycle)]
        self._events = [*self._events[-EVENTS:], event]
        self._accounted = -ACCOUNT
        self._state = STATE_AFTER.get(kind, self._state)
        if kind == "cycle_start":
            self._uncounted = {*self._uncounted, cycle} if self._cycle >= 0 else {cycle}
            self._cycle, self._since = cycle, event.mono
            self._ranks, self._running, self.has_rank_0 = 0, {}, False
        elif kind == "rank_start":
            self._ranks += 1
            self._running[event.get("pid")] = event.get("local_rank")
            self.has_rank_0 |= event.get("rank") == 0
        elif kind == "rank_exit":
            self._running.pop(event.get("pid"), None)
        elif kind == "node_suspected":
            self._suspects.update(filter(None, (event.get("suspect"), event.get("domain"))))
        elif kind == "run_end":
            self._exit_code = event.get("exit_code")

    def end(self) -> None:
        """The launcher ends."""
        self._state, self._running, self._accounted = "ended", {}, -ACCOUNT

    def text(
        self,
        t: float,
        now: float,
        latest: tuple[float, Mapping[int, Snapshot]],
        waiting: tuple[int, bool],
        report: Event | None,
    ) -> str:
        """The values now in Prometheus' text format.

        Args:
            t: Now in unix seconds.
            latest: When the boards were read, and what they had, by local rank.
            waiting: How many nodes wait for a place, and whether this one does.
            report: The newest `straggler_report` of rank 0.
        """
        read_at, boards = latest
        # At the first event of a cycle the boards may still be those of the one before.
        own = {
            at: each for at, each in boards.items() if each.identity and each.identity.cycle == self._cycle
        }
        if now - self._accounted >= ACCOUNT or (len(self._uncounted) > 1 and now - self._since >= REPORT):
            self._account(t, now, own)
        steps = {local: each.step for local, each in own.items() if each.step is not None}
        self._steps.append((read_at, self._cycle, steps))
        samples = self._of_job(waiting) | self._of_ranks(read_at, own)
        if report:
            slow = [each.get("slowdown") or 1.0 for each in report.get("verdicts", ())]  # the slowest
            samples |= {"straggler_findings": len(slow), "straggler_slowdown_ratio": max([1.0, *slow])}
        lines = []
        for name, kind, labels, meaning in FAMILIES:
            lines += [f"# HELP holdfast_{name} {meaning}", f"# TYPE holdfast_{name} {kind}"]
            values = samples.get(name, {})
            for words, value in (values if isinstance(values, dict) else {(): values}).items():
                pairs = zip(("run_id", "node", *labels), (self._run_id, self._node, *words), strict=True)
                shown = ",".join(f'{label}="{_escaped(word)}"' for label, word in pairs)
                lines += [] if value is None else [f"holdfast_{name}{{{shown}}} {round(float(value), 6)!r}"]
        return "\n".join([*lines, ""])

    def _of_job(self, waiting: tuple[int, bool]) -> Samples:
        state = "spare" if waiting[1] and self._state != "ended" else self._state
        failure = self._last_failure
        return {
            "job_state": {(each,): int(each == state) for each in STATES},
            "exit_code": self._exit_code,
            "cycle": self._cycle if self._cycle >= 0 else None,
            "ranks": self._ranks,
            "ranks_running": len(self._running),
            "restarts_total": {(each,): self._restarts[each] for each in (*INCIDENTS, "other")},
            "incidents_total": {(each,): self._incidents[each] for each in INCIDENTS},
            "last_failure_detect_seconds": failure.unnoticed_seconds if failure else None,
            "last_failure_resume_seconds": failure.resume_seconds if failure else None,
            "goodput_seconds": {(each,): self._seconds.get(each, 0) for each in BUCKETS},
            "nodes_suspected": len(self._suspects),
            "spare_nodes": waiting[0],
        }

    def _of_ranks(self, read_at: float, boards: Mapping[int, Snapshot]) -> Samples:
        """Those of ranks that run, and whose boards were read at this moment."""
        samples: dict[str, dict[tuple[str, ...], float | None]] = defaultdict(dict)
        for local in self._running.values() & boards.keys():
            board, rank = boards[local], str(local)
            samples["rank_step"][rank,] = board.step
            samples["rank_steps_per_second"][rank,] = self._rate(local)
            if board.last_heartbeat_ns:
                samples["rank_heartbeat_age_seconds"][rank,] = read_at - board.last_heartbeat_ns / SECOND
            for section in board.open_sections:
                place = rank, section.name
                samples["rank_section_age_seconds"][place] = read_at - section.since_ns / SECOND
                samples["rank_section_limit_seconds"][place] = board.limits.sections.get(section.name)
        return {**samples}

    def _account(self, t: float, now: float, boards: Mapping[int, Snapshot]) -> None:
        """Count the incidents, and find where the time until now went."""
        events, is_over = self._events, self._state == "ended"
        self._accounted = now
        if events and not is_over:
            last = next((each.fields for each in reversed(events) if each.kind == "progress"), {})
            fields = ProgressLog(self._cycle, now).event(now, boards, "interval") if boards else last
            events = [*events, Event("progress", t, now, self._node, fields, self._node)]
        found = incidents(events)
        self._seconds = goodput(events, found).seconds
        failures = [each for each in found if each.kind not in PLANNED]
        self._last_failure = failures[-1] if failures else self._last_failure
        for cycle in sorted(self._uncounted):
            if is_over or (cycle < self._cycle and now - self._since >= REPORT):
                self._uncounted.discard(cycle)
                kinds = [each.kind for each in found if each.cycle == cycle]
                self._incidents.update(kinds)
                self._restarts.update([*kinds, "other"][:1] if cycle < self._cycle else [])

    def _rate(self, local: int) -> float | None:
        """Steps per second; None where the rank was read once, or has begun to count anew."""
        read = [
            (at, steps[local]) for at, cycle, steps in self._steps if cycle == self._cycle and local in steps
        ]
        if not read or read[-1][0] == read[0][0] or read[-1][1] < read[0][1]:
            return None
        return (read[-1][1] - read[0][1]) / (read[-1][0] - read[0][0])


def _escaped(word: str) -> str:
    return word.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
