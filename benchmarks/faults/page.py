"""What docs/faults.md says of a run, and what the command prints. Pure but for the machine's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.marks import filled

from .kinds import HARMLESS, KINDS
from .peers import Row
from .scenarios import Scenario
from .score import Score

MARKS = "<!-- measured -->", "<!-- end -->"
COMMAND = "make faults"
NAMES = {"torchrun": "torchrun", "nvrx": "NVRx 0.4.1"}


@dataclass(frozen=True)
class Run:
    """Everything that one command has found out."""

    scenarios: Sequence[Scenario]
    scores: Sequence[Score]
    peers: Sequence[Row] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 1


def listing(scenarios: Sequence[Scenario]) -> str:
    """One line for each, with its truth."""
    lines = []
    for one in scenarios:
        kind = KINDS.get(one.kind)
        what = kind.what if kind else HARMLESS[one.kind].what
        truth = "nothing to be said" if one.truth is None else " or ".join(one.truth.kinds)
        nodes = "+".join(map(str, one.nodes))
        lines.append(f"{one.name:36} {nodes:>4} ranks, rank {one.rank}: {truth:42} {what}")
    return "\n".join(lines)


def tables(run: Run) -> str:
    """Totals, a row for each kind, the healthy jobs, and the peers."""
    parts = [_totals(run), _kinds(run)]
    if any(score.healthy for score in run.scores):
        parts.append(_healthy(run))
    if run.peers:
        parts.append(_peers(run))
    if run.skipped:
        parts.append("Skipped: " + "; ".join(f"{name} ({why})" for name, why in run.skipped.items()))
    if wrong := [score for score in run.scores if not score.right]:
        parts.append("### What was not right\n\n" + "\n".join(map(_wrong, wrong)))
    return "\n\n".join(parts)


def filled_page(page: str, run: Run) -> str:
    """The page with this run between its marks."""
    from benchmarks.run import machine

    before = f"{machine(1)} Command: `{COMMAND}`; {run.jobs} jobs side by side."
    return filled(page, f"{before}\n\n{tables(run)}", *MARKS)


def _totals(run: Run) -> str:
    faults = [score for score in run.scores if not score.healthy]
    lines = [_row("", "all", "first kinds", "last kinds*"), _row(*["---"] * 4)]
    groups = (faults, [s for s in faults if not s.later], [s for s in faults if s.later])
    lines.append(_row("kinds", *(str(len({s.kind for s in group})) for group in groups)))
    lines.append(_row("scenarios", *(str(len(group)) for group in groups)))
    for what, ask in COLUMNS.items():
        lines.append(_row(what, *(_share(map(ask, group)) for group in groups)))
    lines.append(_row("wrong with high confidence", *(str(sum(s.wrong_and_sure for s in g)) for g in groups)))
    for what, hangs in (("to find a hang, median", True), ("to find an end, median", False)):
        lines.append(
            _row(
                what, *(_median(s.to_find for s in g if (s.before_kill is not None) == hangs) for g in groups)
            )
        )
    lines.append(_row("evidence ready after, worst", *(_worst(s.ready for s in group) for group in groups)))
    return "\n".join(lines)


COLUMNS: Mapping[str, Callable[[Score], bool | None]] = {
    "found": lambda score: score.found,
    "culprit right": lambda score: score.culprit,
    "kind right": lambda score: score.kind_right,
    "report before kill": lambda score: score.before_kill,
    "report complete": lambda score: score.complete,
    "recovered": lambda score: score.recovered,
    "nothing left": lambda score: score.clean,
}


def _kinds(run: Run) -> str:
    lines = [_row("fault", "what happens", *COLUMNS, "to find"), _row(*["---"] * (3 + len(COLUMNS)))]
    for name, kind in KINDS.items():
        own = [score for score in run.scores if score.kind == name]
        if own:
            cells = [_of(map(ask, own)) for ask in COLUMNS.values()]
            title = f"`{name}`" + ("*" if kind.later else "")
            lines.append(_row(title, kind.what, *cells, _median(score.to_find for score in own)))
    return "\n".join([*lines, "", "\\* written last."])


def _healthy(run: Run) -> str:
    lines = [
        _row("healthy job", "what happens", "nothing said", "result right", "nothing left"),
        _row(*["---"] * 5),
    ]
    for score in run.scores:
        if score.healthy:
            cells = ["yes" if each else "**no**" for each in (score.found, score.recovered, score.clean)]
            lines.append(_row(f"`{score.kind}`", HARMLESS[score.kind].what, *cells))
    return "\n".join(lines)


def _peers(run: Run) -> str:
    who = list(dict.fromkeys(row.who for row in run.peers))
    ran = {row.scenario for row in run.peers}
    lines = [_row("one phase of each kind", "found", "recovered", "culprit named"), _row(*["---"] * 4)]
    for each in who:
        own = [row for row in run.peers if row.who == each]
        cells = [_share(getattr(row, what) for row in own) for what in ("found", "recovered", "named")]
        lines.append(_row(NAMES[each], *cells))
    own_scores = [score for score in run.scores if score.scenario in ran]
    asked = (lambda s: s.found, lambda s: s.recovered, lambda s: s.culprit)
    lines.append(_row("Holdfast", *(_share(map(ask, own_scores)) for ask in asked)))
    return "\n".join(lines)


def _wrong(score: Score) -> str:
    missed = [f"{what}: no" for what, ask in COLUMNS.items() if ask(score) is False]
    if score.wrong_and_sure:
        missed.append("sure of something else")
    said = f"; said: {score.said}" if score.said else ""
    remarks = f"; {'; '.join(score.remarks)}" if score.remarks else ""
    return f"- `{score.scenario}`: {'; '.join(missed)}{said}{remarks}"


def _share(answers: Iterable[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    return f"{sum(known)} of {len(known)} ({100 * sum(known) / len(known):.1f} %)" if known else "–"


def _of(answers: Iterable[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    if not known:
        return "–"
    return str(len(known)) if all(known) else f"**{sum(known)} of {len(known)}**"


def _median(seconds: Iterable[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return f"{median(known):.2f} s" if known else "–"


def _worst(seconds: Iterable[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return f"{max(known):.2f} s" if known else "–"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
