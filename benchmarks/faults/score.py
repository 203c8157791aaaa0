"""What a job has left behind, and how it compares with the scenario's label.

Reading never fails for what a job did not write, or wrote only half. What was not detected, not reported or did not
happen counts as wrong; where a question does not arise, the answer is None. Of the reports of several nodes the one
that has the most ranks counts; every other one may have less, but must not be certain of something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .corpus import NODE, RANK, TOTAL, Scenario
from .injection import result

Event = dict[str, Any]

SCHEMAS = 1, 2
"""Of incident.json, that are scored."""
LINES = 40
DETECTIONS = ("verdict", "stop", "node_lost", "incident", "signal_sent")
ACCUSATIONS = ("verdict", "node_lost", "incident", "signal_sent", "restart")
"""Events that a healthy job must not have; it is stopped, too, when it is done."""
INCONCLUSIVE = ("elsewhere", "unknown")


# What a job has left behind


@dataclass(frozen=True)
class Report:
    """One folder incidents/NNNN."""

    path: str
    verdict: Mapping[str, Any]
    schema: int
    cycle: int
    ranks: tuple[int, ...]
    lines: int
    """Of report.txt; 0 where there is none."""


@dataclass(frozen=True)
class Facts:
    """Everything that a score is made of."""

    codes: tuple[int | None, ...] = ()
    """Of each node's launcher; None: it had to be ended."""
    happened: float | None = None
    """When the fault happened, monotonic seconds; None: it did not."""
    result: str = ""
    cycles: int = 0
    """How many of them ranks began."""
    journals: tuple[tuple[Event, ...], ...] = ()
    reports: tuple[Report, ...] = ()
    left: tuple[str, ...] = ()
    """Processes and files that the launchers left behind."""
    log: str = field(default="", repr=False)
    lost: int | None = None
    """The node that the corpus itself has killed."""
    seconds: float = 0.0


def folder_of(home: Path, scenario: Scenario) -> Path:
    """Of its job, in the folder of one launcher."""
    return home / scenario.name.replace("/", "-")


def facts(
    folder: Path, codes: tuple[int | None, ...], left: tuple[str, ...], lost: int | None, seconds: float
) -> Facts:
    """What one job has left in its folder, and how it ended."""
    return Facts(
        codes,
        happened(folder),
        text(folder / "result"),
        cycles(folder),
        journals(folder),
        reports(folder),
        left,
        "".join(text(folder / f"log-{node}") for node in range(len(codes))),
        lost,
        seconds,
    )


def rejudged_facts(folder: Path, scenario: Scenario) -> Facts:
    """Of a folder that was kept, with the verdicts that today's rules give for its evidence.

    The exit codes are those of the journals. Does not cover: leftovers, which are counted only while a job runs.
    """
    from holdfast.incidents import judge
    from holdfast.incidents.wire import encoded

    lost = scenario.node if scenario.loses_a_node else None
    ends = [event for journal in journals(folder) for event in journal if event.get("kind") == "run_end"]
    codes = [event.get("exit_code") for event in ends]
    missing = len(scenario.nodes) - len(codes) - (lost is not None)
    codes += [None] * max(0, missing)
    if lost is not None:
        codes.insert(lost, None)
    found = facts(folder, tuple(codes), (), lost, 0.0)
    judged = [
        replace(each, verdict=encoded(judge([Path(each.path, "incident.json")]).verdict))
        for each in found.reports
    ]
    return replace(found, reports=tuple(judged))


def happened(folder: Path) -> float | None:
    """The first moment of the fault, of any rank."""
    moments = []
    for note in folder.glob("happens-*"):
        with suppress(OSError, ValueError, KeyError):
            moments.append(float(json.loads(note.read_text())["mono"]))
    return min(moments, default=None)


def cycles(folder: Path) -> int:
    """How many cycles ranks began."""
    return 1 + max((int(note.name.split("-")[1]) for note in folder.glob("began-*")), default=-1)


def text(path: Path) -> str:
    """ "" where there is no such file."""
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def journals(folder: Path) -> tuple[tuple[Event, ...], ...]:
    """Of every launcher, whichever run directory it has."""
    found: list[tuple[Event, ...]] = []
    for path in sorted(folder.glob("run*/**/journal-*.jsonl")):
        if ".rank-" not in path.name:
            events = []
            for line in text(path).splitlines():
                with suppress(ValueError):
                    events.append(json.loads(line))
            found.append(tuple(event for event in events if isinstance(event, dict)))
    return tuple(found)


def reports(folder: Path) -> tuple[Report, ...]:
    """All that there are, in the order of their folders."""
    found = []
    for path in sorted(folder.glob("run*/**/incidents/[0-9]*/incident.json")):
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            record = json.loads(path.read_text())
            nodes = record["nodes"]
            report = Report(
                str(path.parent),
                record["verdict"],
                int(record["schema"]),
                min((int(node.get("cycle", 0)) for node in nodes), default=0),
                tuple(sorted(int(rank["rank"]) for node in nodes for rank in node["ranks"])),
                len(text(path.with_name("report.txt")).splitlines()),
            )
            found.append(report)
    return tuple(found)


# The score


@dataclass(frozen=True)
class Score:
    """The result of one scenario. `remarks` has why something is wrong."""

    scenario: str
    kind: str
    held_out: bool
    healthy: bool
    found: bool = False
    to_find: float | None = None
    """Seconds from the fault until it was detected."""
    culprit: bool | None = None
    kind_right: bool | None = None
    wrong_and_sure: bool = False
    before_kill: bool | None = None
    ready: float | None = None
    """Seconds from a limit that is passed to the evidence and its verdict."""
    recovered: bool = False
    clean: bool = False
    complete: bool | None = None
    verdict: str = ""
    """Its rank, kind and confidence."""
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether nothing at all is wrong."""
        asked = (self.culprit, self.kind_right, self.before_kill, self.complete)
        return self.found and self.recovered and self.clean and not self.wrong_and_sure and False not in asked


def scored(scenario: Scenario, facts: Facts) -> Score:
    """The score of one run under Holdfast's launcher."""
    ends = [] if recovered(facts) else [f"exit codes {facts.codes}, result {facts.result or 'none'}"]
    score = Score(
        scenario.name,
        scenario.kind,
        scenario.fault.held_out,
        healthy=not scenario.kinds,
        recovered=recovered(facts),
        clean=not facts.left,
        seconds=facts.seconds,
        remarks=(*ends, *(f"left: {each}" for each in facts.left[:4])),
    )
    return _fault_score(score, scenario, facts) if scenario.kinds else _healthy_score(score, facts)


def recovered(facts: Facts) -> bool:
    """Whether every launcher ended with 0, and the result is that of an undisturbed run."""
    ended = all(code == 0 for node, code in enumerate(facts.codes) if node != facts.lost)
    return ended and facts.result == result(TOTAL)


NAMES = (
    # torch's agent, of each failed worker, with the local rank
    r"failed \(exitcode: -?\d+\) local_rank: (?P<local>\d+)",
    # torch's summary at the end
    r"Root Cause.*?rank\s+: (?P<rank>\d+)",
    # NVRx's monitor of one rank, of a limit that has passed
    r"RankMonServer\d+@[^:\s]+:(?P<monitored>\d+)\] (?:Did not get|Section '[^']*' has been open)",
)
"""How other launchers name a rank that failed or hung."""


def scored_peer(scenario: Scenario, facts: Facts) -> Score:
    """The score of one run under another launcher, of a fault: whether it was found, recovered, and its rank named.

    Found is a second cycle, or an end with another code than 0, within `run.REACTION_TIMEOUT`.
    """
    ended = [code for node, code in enumerate(facts.codes) if node != facts.lost]
    return Score(
        scenario.name,
        scenario.kind,
        scenario.fault.held_out,
        healthy=False,
        found=facts.happened is not None
        and (facts.cycles > 1 or any(code not in (0, None) for code in ended)),
        culprit=named_rank(facts.log, scenario) == scenario.rank if scenario.fault.blames == RANK else None,
        recovered=recovered(facts),
    )


def named_rank(log: str, scenario: Scenario) -> int | None:
    """The global rank in the first line that names one; of several nodes, none by its local rank."""
    matches = [match for pattern in NAMES for match in re.finditer(pattern, log, re.DOTALL)]
    if not matches:
        return None
    first = min(matches, key=lambda match: match.start())
    number = int(next(text for text in first.groupdict().values() if text is not None))
    return number if "local" not in first.re.groupindex or len(scenario.nodes) == 1 else None


def _healthy_score(score: Score, facts: Facts) -> Score:
    """Of a healthy job: whether it was left alone."""
    accused = [event for journal in facts.journals for event in journal if event.get("kind") in ACCUSATIONS]
    remarks = []
    for event in accused[:1]:
        words = [event.get(name) for name in ("kind", "rank", "reason", "sentence")]
        remarks.append(f"a healthy job has the event: {' '.join(str(w) for w in words if w is not None)}")
    return replace(
        score,
        found=not accused and not facts.reports and facts.cycles == 1,
        wrong_and_sure=any(report.verdict.get("confidence") == "high" for report in facts.reports),
        remarks=(*remarks, *score.remarks),
    )


def _signals(event: Mapping[str, Any]) -> bool:
    """Whether ranks get a signal: from the monitor, or by a decision of the launcher after evidence was taken."""
    actions = event.get("actions") if event["kind"] == "decision" else None
    sent = isinstance(actions, list) and any(each.get("$") == "SignalRanks" for each in actions)
    return sent or event["kind"] == "signal_sent"


def _fault_score(score: Score, scenario: Scenario, facts: Facts) -> Score:
    """Of a fault: whether and when it was found, and whether its report is right, in time and complete."""
    events = [event for journal in facts.journals for event in _first_cycle(journal)]
    detected, happened = _first(e for e in events if e["kind"] in DETECTIONS or _failed(e)), facts.happened
    found = happened is not None and detected is not None and detected >= happened - 0.5
    own = [each for each in facts.reports if each.cycle == 0]
    report = max(own, key=lambda each: len(each.ranks), default=None)
    verdict = report.verdict if report else {}
    ready = _first(
        {"mono": event.get("evidence_mono")} for event in events if event["kind"] in ("incident", "verdict")
    )
    killed = _first(event for event in events if _signals(event))
    before_kill = None
    if _hung(events, scenario):
        before_kill = ready is not None and (killed is None or ready <= killed)
    return replace(
        score,
        found=found,
        to_find=detected - happened if found else None,  # type: ignore[operator]
        culprit=bool(verdict) and _is_culprit(scenario, verdict),
        kind_right=verdict.get("kind") in scenario.kinds,
        wrong_and_sure=any(_is_sure_of_another(scenario, each.verdict) for each in facts.reports),
        before_kill=before_kill,
        ready=_ready_after(events, ready),
        complete=report is not None and _is_complete(scenario, facts, report),
        verdict=f"rank {verdict.get('rank')}, {verdict.get('kind')}, {verdict.get('confidence')}"
        if verdict
        else "",
        remarks=(*([] if happened is not None else ["the fault did not happen"]), *score.remarks),
    )


def _is_culprit(scenario: Scenario, verdict: Mapping[str, Any]) -> bool:
    if scenario.fault.blames == RANK:
        return verdict.get("rank") == scenario.rank
    if scenario.fault.blames == NODE:
        # Without the domain, and the process that tells launchers of one host apart.
        host = str(verdict.get("node") or "").split(":")[0].split(".")[0]
        return verdict.get("rank") is None and host in (f"node-{'ab'[scenario.node]}", "")
    return verdict.get("rank") is None


def _is_sure_of_another(scenario: Scenario, verdict: Mapping[str, Any]) -> bool:
    if verdict.get("confidence") != "high" or verdict.get("kind") in INCONCLUSIVE:
        return False
    return not _is_culprit(scenario, verdict) or verdict.get("kind") not in scenario.kinds


def _is_complete(scenario: Scenario, facts: Facts, report: Report) -> bool:
    """Whether it has every rank of every node that is left, in at most `LINES` lines."""
    expected = set(range(scenario.world))
    if facts.lost is not None:
        first = sum(scenario.nodes[: facts.lost])
        expected -= set(range(first, first + scenario.nodes[facts.lost]))
    return report.schema in SCHEMAS and expected <= set(report.ranks) and 0 < report.lines <= LINES


def _hung(events: Sequence[Event], scenario: Scenario) -> bool:
    """Where the label leaves it open: whether a limit was passed before any rank ended."""
    if scenario.hangs is not None:
        return scenario.hangs
    passed, ended = _first(e for e in events if e["kind"] == "verdict"), _first(filter(_failed, events))
    return passed is not None and (ended is None or passed <= ended)


def _ready_after(events: Sequence[Event], ready: float | None) -> float | None:
    """From the moment at which a limit was passed to the first evidence and its verdict."""
    passed = [
        float(event["mono"]) - (float(event["waited"]) - float(event["limit"]))
        for event in events
        if event["kind"] == "verdict" and {"waited", "limit"} <= set(event)
    ]
    return max(0.0, ready - min(passed)) if passed and ready is not None else None


def _first(events: Iterable[Event]) -> float | None:
    moments = (event["mono"] for event in events)
    return min((float(each) for each in moments if isinstance(each, (int, float))), default=None)


def _failed(event: Event) -> bool:
    return event["kind"] == "rank_exit" and (bool(event.get("exitcode")) or bool(event.get("signal")))


def _first_cycle(journal: Iterable[Event]) -> Iterator[Event]:
    """A journal's events until its second cycle starts; an incident is recorded later, with its own cycle."""
    is_over = False
    for event in journal:
        is_over = is_over or (event.get("kind") == "cycle_start" and bool(event.get("cycle")))
        own = event.get("cycle", 0) == 0 if event.get("kind") == "incident" else not is_over
        if own and isinstance(event.get("mono"), (int, float)) and "kind" in event:
            yield event
