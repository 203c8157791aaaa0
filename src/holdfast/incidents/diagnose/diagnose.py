"""A report on a job that still runs, because a person asked: `holdfast diagnose`.

Evidence is captured once and judged once. The answer comes within the requested seconds, and at most two
more. A process is signalled only where it is verifiably armed for that (`capture.stack_request`).
Does not cover: ranks without a board. Whether they make progress is not known, so none of them is accused with more
than low confidence, unless it cannot run at all.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from ..capture.capture import capture, judged
from ..capture.context import Trigger
from ..evidence import DIAGNOSE, Case, RankEvidence
from ..report import wording
from ..report.redaction import redacted, redacted_text
from ..report.text import report_lines
from ..rules.sentence import seconds as duration
from ..verdict import LOW, Activity, Judgement, Kind
from .find_job import DiagnoseError, Job

APART = 0.5
"""Share of the time that is between the two samples."""
MOST = 32
"""Ranks that have a line of their own."""
ONE_MOMENT = "This is what one moment shows. Diagnose the job again, and compare."


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found."""

    title: str
    case: Case
    judgement: Judgement
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For a person."""
        found = (lines if is_healthy(self.judgement) else report_lines)(self.case, self.judgement)
        return [f"Diagnosed: {self.title}", *self.notes, *found]


def diagnose(job: Job, seconds: float) -> Diagnosis:
    """Diagnose this job, for at most about so many seconds. Raises `DiagnoseError` where it has ended."""
    until = time.monotonic() + seconds
    evidence = capture(job.ranks, job.place, Trigger(DIAGNOSE), until, ask=True, pause=seconds * APART)
    title, notes = job.title, list(job.notes)
    for environment in (job.environment, os.environ):
        evidence = redacted(evidence, environment)
        title, *notes = (redacted_text(text, environment) for text in (title, *notes))
    case = Case((evidence,))
    if all(rank.process is None or rank.process.state == "gone" for rank in case.ranks):
        raise DiagnoseError(f"{title}: ended before its evidence was captured")
    judgement = judged(case)
    if judgement.verdict.confidence == LOW and not is_healthy(judgement):
        notes.append(ONE_MOMENT)
    case = Case((replace(evidence, notes=(*evidence.notes, *notes)),))
    return Diagnosis(title, case, judgement, tuple(notes))


def is_healthy(judgement: Judgement) -> bool:
    """Whether no hang was found, because all ranks make progress, are busy, or do the same."""
    return judgement.verdict.kind == Kind.SLOW and judgement.verdict.rank is None


def lines(case: Case, judgement: Judgement) -> list[str]:
    """One line for each rank of a job that does not hang."""
    ranks, verdict = case.ranks, judgement.verdict
    activities = {activity.rank: activity for activity in judgement.activities}
    lines = [f"  {_line(rank, activities.get(rank.rank))}" for rank in ranks[:MOST]]
    if len(ranks) > MOST:
        lines.append(f"  and {len(ranks) - MOST} more")
    nodes = ", ".join(dict.fromkeys(wording.visible(node.node, 60) for node in case.nodes))
    return [
        f"DIAGNOSIS: no hang found on {nodes}",
        *lines,
        f"  verdict: {verdict.sentence} (confidence {verdict.confidence})",
    ]


def _line(rank: RankEvidence, activity: Activity | None) -> str:
    board, who = rank.board, f"rank {rank.rank} (pid {rank.pid})"
    if board is not None and board.finished:
        return f"{who} has finished"
    parts = [who]
    if board is not None:
        last = wording.step(rank) or "last sign of life"
        parts[0] += f": {last} {duration(board.silent)} ago"
    parts += [f"it {activity.text}"] if activity and activity.text else []
    return wording.visible("; ".join(parts))
