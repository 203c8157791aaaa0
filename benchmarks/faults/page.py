"""The tables of a run, for docs/reference/fault-results.md and the terminal. Pure but for the machine's line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.table import filled, table

from .corpus import Scenario, faults
from .score import Score

MARKS = "<!-- measured -->", "<!-- end -->"
PEER_MARKS = "<!-- peers -->", "<!-- end of peers -->"
COMMAND = "make faults"


@dataclass(frozen=True)
class Run:
    """The results of one command."""

    scenarios: Sequence[Scenario]
    scores: Sequence[Score]
    peers: Mapping[str, Sequence[Score]] = field(default_factory=dict)
    """Of other launchers, by name."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 1


def listing(scenarios: Sequence[Scenario]) -> str:
    """One line for each, with its label."""
    lines = []
    for one in scenarios:
        label = " or ".join(one.kinds) or "healthy"
        nodes = "+".join(map(str, one.nodes))
        lines.append(f"{one.name:36} {nodes:>4} ranks, rank {one.rank}: {label:42} {one.fault.what}")
    return "\n".join(lines)


def tables(run: Run) -> str:
    """Totals, a row for each kind, and the healthy jobs."""
    parts = [_totals(run), _by_fault(run)]
    if any(score.healthy for score in run.scores):
        parts.append(_healthy(run))
    if run.skipped:
        parts.append("Skipped: " + "; ".join(f"{name} ({why})" for name, why in run.skipped.items()))
    if wrong := [score for score in run.scores if not score.right]:
        parts.append("### What was not right\n\n" + "\n".join(map(_wrong, wrong)))
    return "\n\n".join(parts)


def filled_page(page: str, run: Run) -> str:
    """The page with this run between its marks; the peers' table stays if this run has none."""
    from benchmarks.run import machine

    before = f"{machine(1)} Command: `{COMMAND}`; {run.jobs} jobs side by side."
    found = filled(page, f"{before}\n\n{tables(run)}", *MARKS)
    return filled(found, f"{before}\n\n{peer_table(run)}", *PEER_MARKS) if run.peers else found


def _totals(run: Run) -> str:
    every = [score for score in run.scores if not score.healthy]
    groups = (every, [s for s in every if not s.held_out], [s for s in every if s.held_out])
    asked: dict[str, Callable[[Sequence[Score]], str]] = {
        "faults": lambda group: str(len({s.kind for s in group})),
        "scenarios": lambda group: str(len(group)),
        **{what: lambda group, ask=ask: _share(map(ask, group)) for what, ask in COLUMNS.items()},
        "wrong with high confidence": lambda group: str(sum(s.wrong_and_sure for s in group)),
        "to find a hang, median": lambda g: _seconds(
            median, (s.to_find for s in g if s.before_kill is not None)
        ),
        "to find an end, median": lambda g: _seconds(median, (s.to_find for s in g if s.before_kill is None)),
        "evidence ready after, worst": lambda group: _seconds(max, (s.ready for s in group)),
    }
    rows = [[what, *map(ask, groups)] for what, ask in asked.items()]
    return table(["", "all", "met by the rules", "held out"], rows)


COLUMNS: Mapping[str, Callable[[Score], bool | None]] = {
    "found": lambda score: score.found,
    "culprit right": lambda score: score.culprit,
    "kind right": lambda score: score.kind_right,
    "report before kill": lambda score: score.before_kill,
    "report complete": lambda score: score.complete,
    "recovered": lambda score: score.recovered,
    "nothing left": lambda score: score.clean,
}


def _by_fault(run: Run) -> str:
    rows = []
    for name, one in faults().items():
        own = [score for score in run.scores if score.kind == name and not score.healthy]
        if own:
            cells = [_of(map(ask, own)) for ask in COLUMNS.values()]
            rows.append([_title(own[0]), one.what, *cells, _seconds(median, (s.to_find for s in own))])
    return table(["fault", "what happens", *COLUMNS, "to find"], rows) + "\n\n\\* held out."


def _healthy(run: Run) -> str:
    rows = []
    for score in run.scores:
        if score.healthy:
            cells = ["yes" if each else "**no**" for each in (score.found, score.recovered, score.clean)]
            rows.append([_title(score), faults()[score.kind].what, *cells])
    return table(["healthy job", "what happens", "left alone", "result right", "nothing left"], rows)


def peer_table(run: Run) -> str:
    """The other launchers beside this one."""
    asked = ("found", "recovered", "culprit right")
    ran = {score.scenario for scores in run.peers.values() for score in scores}
    own = [score for score in run.scores if score.scenario in ran]
    rows = [
        [who, *(_share(ask(s) for s in scores) for ask in (COLUMNS[name] for name in asked))]
        for who, scores in {**run.peers, "Holdfast": own}.items()
    ]
    return table(["one phase of each fault", "found", "recovered", "culprit named"], rows)


def _wrong(score: Score) -> str:
    missed = [f"{what}: no" for what, ask in COLUMNS.items() if ask(score) is False]
    if score.wrong_and_sure:
        missed.append("certain of something else")
    verdict = f"; verdict: {score.verdict}" if score.verdict else ""
    remarks = f"; {'; '.join(score.remarks)}" if score.remarks else ""
    return f"- `{score.scenario}`: {'; '.join(missed)}{verdict}{remarks}"


def _share(answers: Iterable[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    return f"{sum(known)} of {len(known)} ({100 * sum(known) / len(known):.1f} %)" if known else "–"


def _of(answers: Iterable[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    if not known:
        return "–"
    return str(len(known)) if all(known) else f"**{sum(known)} of {len(known)}**"


def _seconds(pick: Callable[[list[float]], float], seconds: Iterable[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return f"{pick(known):.2f} s" if known else "–"


def _title(score: Score) -> str:
    return f"`{score.kind}`" + ("*" if score.held_out else "")
