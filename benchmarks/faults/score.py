"""A scenario's truth against what was found. Pure.

What was not found, not said or did not happen counts as wrong; where a question does not arise, the answer is None. One
report names one culprit: of a job of several nodes it is the report that tells of the most ranks that counts, and every
other one may know less, but not be sure of something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .expected import result
from .facts import Event, Facts, Report
from .kind import NODE, RANK, Truth
from .scenarios import TOTAL, Scenario

LINES = 40
NOTICES = ("verdict", "stop", "node_lost", "incident", "signal_sent")
SAYINGS = ("verdict", "node_lost", "incident", "signal_sent", "restart")
"""What must not be said of a healthy job, which is stopped, too, when it is done."""
KNOWS_LESS = ("elsewhere", "unknown")


@dataclass(frozen=True)
class Score:
    """What became of one scenario. `remarks` says why something is wrong."""

    scenario: str
    kind: str
    later: bool
    healthy: bool
    found: bool = False
    to_find: float | None = None
    """Seconds from the fault until it was noticed."""
    culprit: bool | None = None
    kind_right: bool | None = None
    wrong_and_sure: bool = False
    before_kill: bool | None = None
    ready: float | None = None
    """Seconds from a limit that is passed to the evidence and its verdict."""
    recovered: bool = False
    clean: bool = False
    complete: bool | None = None
    said: str = ""
    """The verdict, as rank, kind and confidence."""
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether nothing at all is wrong."""
        asked = (self.culprit, self.kind_right, self.before_kill, self.complete)
        return self.found and self.recovered and self.clean and not self.wrong_and_sure and False not in asked


def scored(scenario: Scenario, facts: Facts) -> Score:
    """Of one run under Holdfast's launcher."""
    return _healthy(scenario, facts) if scenario.truth is None else _fault(scenario, facts)


def recovered(facts: Facts) -> bool:
    """Whether every launcher ended with 0, and the result is that of an undisturbed run."""
    ended = all(code == 0 for node, code in enumerate(facts.codes) if node != facts.lost)
    return ended and facts.result == result(TOTAL)


def _healthy(scenario: Scenario, facts: Facts) -> Score:
    said = [event for journal in facts.journals for event in journal if event.get("kind") in SAYINGS]
    quiet = not said and not facts.reports and facts.cycles == 1
    remarks = [f"of a healthy job was said: {_words(event)}" for event in said[:1]]
    return Score(
        scenario.name,
        scenario.kind,
        False,
        True,
        found=quiet,
        recovered=recovered(facts),
        clean=not facts.left,
        wrong_and_sure=any(report.verdict.get("confidence") == "high" for report in facts.reports),
        seconds=facts.seconds,
        remarks=(*remarks, *_remarks(facts)),
    )


def _words(event: Event) -> str:
    return " ".join(
        str(event[name]) for name in ("kind", "rank", "reason", "sentence") if event.get(name) is not None
    )


def _fault(scenario: Scenario, facts: Facts) -> Score:
    truth = scenario.truth
    assert truth is not None
    noticed = _first(facts.journals, NOTICES, also_failures=True)
    happened = facts.happened
    found = happened is not None and noticed is not None and noticed >= happened - 0.5
    report = _telling(facts.reports)
    verdict = report.verdict if report else {}
    culprit, kind = bool(verdict) and _culprit(scenario, verdict), verdict.get("kind") in truth.kinds
    before = _before_kill(facts) if _hung(facts, truth) else None
    return Score(
        scenario.name,
        scenario.kind,
        scenario.later,
        False,
        found,
        noticed - happened if found and noticed is not None and happened is not None else None,
        culprit,
        kind,
        any(_sure_of_something_else(scenario, each.verdict) for each in facts.reports),
        before,
        _ready(facts),
        recovered(facts),
        not facts.left,
        report is not None and _complete(scenario, facts, report),
        _said(verdict),
        facts.seconds,
        (*(["the fault did not happen"] if happened is None else []), *_remarks(facts)),
    )


def _culprit(scenario: Scenario, verdict: dict[str, object]) -> bool:
    truth = scenario.truth
    assert truth is not None
    if truth.blames == RANK:
        return verdict.get("rank") == scenario.rank
    if truth.blames == NODE:
        return verdict.get("rank") is None and _host(verdict.get("node")) in (_node(scenario), "")
    return verdict.get("rank") is None


def _node(scenario: Scenario) -> str:
    return f"node-{'ab'[scenario.node]}"


def _host(node: object) -> str:
    """Without the domain, and the process that tells launchers of one host apart."""
    return str(node or "").split(":")[0].split(".")[0]


def _sure_of_something_else(scenario: Scenario, verdict: dict[str, object]) -> bool:
    truth = scenario.truth
    assert truth is not None
    if verdict.get("confidence") != "high" or verdict.get("kind") in KNOWS_LESS:
        return False
    return not _culprit(scenario, verdict) or verdict.get("kind") not in truth.kinds


def _telling(reports: Sequence[Report]) -> Report | None:
    """The one of the first cycle that tells of the most ranks; of several the first."""
    return max((each for each in reports if each.cycle == 0), key=lambda each: len(each.ranks), default=None)


def _hung(facts: Facts, truth: Truth) -> bool:
    """Where the truth leaves it open: whether a limit was passed before any rank ended."""
    if truth.hangs is not None:
        return truth.hangs
    passed = _first(facts.journals, ("verdict",))
    ended = _first(facts.journals, (), also_failures=True)
    return passed is not None and (ended is None or passed <= ended)


def _before_kill(facts: Facts) -> bool:
    """Whether evidence and verdict were there before the first signal or stop of the first cycle."""
    ready, kills = _evidence(facts), _first(facts.journals, ("signal_sent", "stop"))
    return ready is not None and kills is not None and ready <= kills


def _ready(facts: Facts) -> float | None:
    """From the moment at which a limit was passed to the first evidence and its verdict."""
    passed = [
        float(event["mono"]) - (float(event["waited"]) - float(event["limit"]))
        for event in _of_first_cycle(facts.journals)
        if event["kind"] == "verdict" and {"waited", "limit"} <= set(event)
    ]
    ready = _evidence(facts)
    return max(0.0, ready - min(passed)) if passed and ready is not None else None


def _evidence(facts: Facts) -> float | None:
    """When evidence and verdict were there, on the node that had them first; None: only after what happened."""
    told = [
        event.get("evidence_mono")
        for event in _of_first_cycle(facts.journals)
        if event["kind"] in ("incident", "verdict")
    ]
    return min((float(moment) for moment in told if isinstance(moment, (int, float))), default=None)


def _complete(scenario: Scenario, facts: Facts, report: Report) -> bool:
    """Whether it tells of every rank of every node that is left, in so many lines as were promised."""
    expected = set(range(scenario.world))
    if facts.lost is not None:
        first = sum(scenario.nodes[: facts.lost])
        expected -= set(range(first, first + scenario.nodes[facts.lost]))
    return report.schema == 1 and expected <= set(report.ranks) and 0 < report.lines <= LINES


def _first(
    journals: Iterable[Iterable[Event]], kinds: Sequence[str], *, also_failures: bool = False
) -> float | None:
    moments = [
        float(event["mono"])
        for event in _of_first_cycle(journals)
        if event["kind"] in kinds or (also_failures and _failed(event))
    ]
    return min(moments, default=None)


def _failed(event: Event) -> bool:
    return event["kind"] == "rank_exit" and (bool(event.get("exitcode")) or bool(event.get("signal")))


def _of_first_cycle(journals: Iterable[Iterable[Event]]) -> list[Event]:
    """Each journal's events until its second cycle starts; incidents are told of later, and say their cycle."""
    found = []
    for journal in journals:
        later = False
        for event in journal:
            later = later or (event.get("kind") == "cycle_start" and bool(event.get("cycle")))
            own = event.get("cycle", 0) == 0 if event.get("kind") == "incident" else not later
            if own and isinstance(event.get("mono"), (int, float)) and "kind" in event:
                found.append(event)
    return found


def _said(verdict: dict[str, object]) -> str:
    if not verdict:
        return ""
    return f"rank {verdict.get('rank')}, {verdict.get('kind')}, {verdict.get('confidence')}"


def _remarks(facts: Facts) -> list[str]:
    ends = [] if recovered(facts) else [f"exit codes {facts.codes}, result {facts.result or 'none'}"]
    return [*ends, *(f"left: {each}" for each in facts.left[:4])]
