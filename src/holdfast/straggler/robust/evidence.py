"""From lasting signs to verdicts: one cause per rank, and the sentence that says how we know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .measure import GPU_LEVEL, Measure, Measured, section_key
from .persistence import Persistence
from .signs import Cause, Signs
from .verdict import CONTENTION, GPU, HOST, KINDS, LATE, SECTION, Verdict, confidence, percent, seconds
from .window import Window

STAGE = "if it is a pipeline stage with more work, give groups="
Hits = Mapping[Cause, NDArray[np.intp]]


@dataclass(frozen=True)
class Case:
    """Everything that is known about one window, for writing verdicts."""

    window: Window
    measured: Measured
    past: Mapping[str, Measure]
    signs: Signs
    hits: Hits
    persistence: Persistence[Cause]

    def lasting(self, rank: int) -> list[Cause]:
        """What speaks against a rank now and often enough, the most specific kind and the clearest sign first."""
        causes = [
            cause
            for cause, hits in self.hits.items()
            if hits[rank] >= self._needed(rank, cause)
            and cause in self.signs.margins
            and self.signs.margins[cause][rank] >= 1
        ]
        clearest = {cause: -float(self.signs.margins[cause][rank]) for cause in causes}
        return sorted(causes, key=lambda cause: (KINDS.index(cause.kind), cause.pooled, clearest[cause]))

    def main_loss(self, rank: int) -> str:
        """What the host took most time with."""
        return max(self.signs.losses, key=lambda name: float(self.signs.losses[name][rank]), default="")

    def _needed(self, rank: int, cause: Cause) -> int:
        """What comes and goes with other programs must have been there in all the windows that are kept."""
        passing = cause.kind == HOST and self.main_loss(rank) in CONTENTION
        return self.persistence.kept if passing else self.persistence.needed

    def compared(self, rank: int) -> int:
        """How many other ranks this rank was compared with."""
        return int((self.measured.codes == self.measured.codes[rank]).sum()) - 1


def verdicts_of(
    window: Window,
    measured: Measured,
    past: Mapping[str, Measure],
    signs: Signs,
    hits: Mapping[Cause, NDArray[np.intp]],
    persistence: Persistence[Cause],
    groups_unsure: bool = False,
) -> tuple[Verdict, ...]:
    """One verdict for each rank with lasting signs, slowest first. `groups_unsure`: nobody said which ranks do the same
    work, and these are the first windows."""
    case = Case(window, measured, past, signs, hits, persistence)
    suspects = np.zeros(window.ranks, dtype=bool)
    for cause, number in hits.items():
        suspects |= (number >= persistence.needed) & (signs.margins.get(cause, suspects * 0) >= 1)
    lasting = [(int(rank), case.lasting(int(rank))) for rank in np.flatnonzero(suspects)]
    verdicts = [_verdict(case, rank, causes[0]) for rank, causes in lasting if causes]
    if groups_unsure:
        slow = {rank for rank, causes in lasting if causes and causes[0] == Cause(GPU)}
        verdicts = _with_doubt(verdicts, slow, measured)
    return tuple(sorted(_with_nodes(verdicts, window), key=lambda verdict: (-verdict.slowdown, verdict.rank)))


def _verdict(case: Case, rank: int, cause: Cause) -> Verdict:
    slowdown, sentence = _WRITERS[cause.kind](case, rank, cause)
    hits = int(case.hits[cause][rank])
    often = f"in {hits} of the last {case.persistence.windows} windows"
    if cause.pooled:
        often = f"in the last {case.measured.pooled_windows} windows taken together"
    arrival, supported = _arrival(case, rank, cause)
    return Verdict(
        rank=rank,
        node=case.window.nodes[rank],
        kind=cause.kind,
        slowdown=round(float(slowdown), 3),
        confidence=confidence(
            float(case.signs.margins[cause][rank]), hits, case.persistence.needed, supported
        ),
        evidence=f"{sentence}, {often}{arrival}",
        section=cause.section,
    )


def _gpu(case: Case, rank: int, cause: Cause) -> tuple[float, str]:
    return _slow(
        case.past[GPU_LEVEL] if cause.past else case.measured.gpu, "its kernels take", case, rank, cause
    )


def _section(case: Case, rank: int, cause: Cause) -> tuple[float, str]:
    name = str(cause.section)
    section = case.measured.sections[name]
    median = section.median
    by_itself = median.pooled[rank] >= 1 if cause.pooled else median.z[rank] >= median.critical[rank]
    if not cause.past and not by_itself:
        return _late_slowdown(case, rank), (
            f"section {name} takes {seconds(float(section.excess[rank]))} more of this window than on the median of "
            f"{case.compared(rank)} comparable ranks, and so it arrives late at the collectives "
            f"({seconds(_late_seconds(case, rank))})"
        )
    compared = case.past[section_key(name)] if cause.past else median
    return _slow(compared, f"section {name} takes", case, rank, cause)


def _slow(compared: Measure, what: str, case: Case, rank: int, cause: Cause) -> tuple[float, str]:
    slowdown = float(np.exp(compared.level[rank]))
    than = "as" if slowdown >= 3 else "than"
    against = (
        "in its own past, while comparable ranks stayed as they were"
        if cause.past
        else f"on the median of {case.compared(rank)} comparable ranks"
    )
    spread = "" if cause.pooled else f" ({compared.z[rank]:.0f} times the usual spread)"
    return slowdown, f"{what} {percent(slowdown)} {than} {against}{spread}"


def _host(case: Case, rank: int, cause: Cause) -> tuple[float, str]:
    losses = {name: float(lost[rank]) for name, lost in case.signs.losses.items()}
    main = case.main_loss(rank)
    if cause.section is None:
        lost = _late_seconds(case, rank)
        slowdown = _late_slowdown(case, rank)
        where = "its lateness at the collectives"
    else:
        section = case.measured.sections[cause.section]
        lost = float(section.excess[rank])
        slowdown = float(np.exp(max(section.median.level[rank], section.mean.level[rank])))
        where = f"what section {cause.section} lost"
    share = min(1.0, sum(losses.values()) / lost)
    return slowdown, (
        f"{main} took {seconds(losses[main])} more of this window than on comparable ranks, "
        f"which with all host causes explains {share * 100:.0f} % of {where} ({seconds(lost)})"
    )


def _late(case: Case, rank: int, cause: Cause) -> tuple[float, str]:
    share = _late_seconds(case, rank) / float(case.measured.busy[rank])
    return _late_slowdown(case, rank), (
        f"it arrives last at the collectives ({share * 100:.0f} % of the time is lost waiting for it), "
        f"and neither its kernels nor its sections say why"
    )


_WRITERS = {GPU: _gpu, SECTION: _section, HOST: _host, LATE: _late}


def _late_slowdown(case: Case, rank: int) -> float:
    """The step's time over what it would be without this rank's lateness."""
    busy, late = float(case.measured.busy[rank]), _late_seconds(case, rank)
    return busy / max(busy - late, 0.01 * busy)


def _late_seconds(case: Case, rank: int) -> float:
    """With rare pauses, where they count."""
    return float(np.fmax(case.measured.late.level[rank], case.measured.mean_late.level[rank]))


def _arrival(case: Case, rank: int, cause: Cause) -> tuple[str, bool | None]:
    """What the collectives say about a verdict that has another reason."""
    late = case.measured.late
    if not np.isfinite(late.z[rank]):
        return "", None
    if late.z[rank] >= late.critical[rank]:
        return f"; at the collectives the others wait {seconds(float(late.level[rank]))} for it", True
    if late.z[rank] <= -late.critical[rank]:
        return "; yet it waits for others at the collectives, so something else costs more", False
    return "; nobody waits for it at the collectives yet", None


def _with_doubt(verdicts: list[Verdict], slow: set[int], measured: Measured) -> list[Verdict]:
    """Say so where it may be other work: `slow` ranks that were never as fast as the others, with a group's first or
    last among them, as the ends of a pipeline are."""
    doubted: set[int] = set()
    for members in measured.groups:
        if {int(members[0]), int(members[-1])} & slow:
            doubted |= slow & set(members.tolist())
    return [
        replace(verdict, evidence=f"{verdict.evidence}; {STAGE}") if verdict.rank in doubted else verdict
        for verdict in verdicts
    ]


def _with_nodes(verdicts: list[Verdict], window: Window) -> list[Verdict]:
    """Say so where several ranks of a node have the same trouble: then it is the node."""
    alike = Counter((verdict.node, verdict.kind) for verdict in verdicts)
    size = Counter(window.nodes)
    return [
        replace(
            verdict,
            evidence=f"{verdict.evidence}; the same holds for {alike[verdict.node, verdict.kind]} "
            f"of the {size[verdict.node]} ranks of this node",
        )
        if alike[verdict.node, verdict.kind] > 1
        else verdict
        for verdict in verdicts
    ]
