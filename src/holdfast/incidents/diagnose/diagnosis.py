"""Evidence, verdict and report of a job that still runs. Nothing is written; nobody is disturbed for longer than it
takes to tell a stack.

What always holds: the answer is there within the seconds that were asked for, and a little; a process is signalled
only where it is verifiably armed for that (`gathering.asking`), py-spy never stops one.

Does not cover: which job it is (`jobs`), where the report goes (the command).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from ..evidence import DIAGNOSE, Case
from ..place import Occasion
from ..taking import judged, take
from ..verdict import Verdict
from . import standing
from .errors import NotDiagnosed
from .job import Job
from .jobs import job_of
from .ours import job_of_launcher
from .run_dirs import launcher_in

APART = 0.5
"""Share of the time that lies between the two looks."""
LONGEST_NUMBER = 20
"""Digits."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found."""

    title: str
    case: Case
    verdict: Verdict
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For a person."""
        from ..report.text import report_lines

        healthy = standing.all_move(self.case)
        found = standing.lines(self.case, self.verdict) if healthy else report_lines(self.case, self.verdict)
        return [f"Looked at: {self.title}", *self.notes, *found]


def job(asked: str) -> Job:
    """The job that a person means with a process's number, or a run directory. Raises `NotDiagnosed`."""
    text = asked.strip()
    if not text:
        raise NotDiagnosed("the name is empty. Name a process by its number, or a run directory")
    if text.isdecimal() and text.isascii():
        if len(text) > LONGEST_NUMBER:
            raise NotDiagnosed(f"{text[:LONGEST_NUMBER]}… is larger than the number of any process")
        return job_of(int(text))
    if text.startswith("-") and text[1:].isdecimal():
        raise NotDiagnosed(f"{text} is no process: numbers of processes are positive")
    found, notes = launcher_in(asked)
    where = job_of_launcher(found)
    where.notes += notes
    return where


def diagnosed(where: Job, seconds: float) -> Diagnosis:
    """Look at this job for about so many seconds at most."""
    from ..report.redaction import redacted

    until = time.monotonic() + seconds
    taken = take(where.ranks, where.place, Occasion(DIAGNOSE), until, ask=True, pause=seconds * APART)
    evidence = taken.evidence
    for environment in (where.environment, os.environ):
        evidence = redacted(evidence, environment)
    case = Case((evidence,))
    if all(rank.process is None or rank.process.state == "gone" for rank in case.ranks):
        raise NotDiagnosed(f"{where.title}: ended while it was looked at")
    notes = list(where.notes)
    if standing.all_move(case):
        verdict = standing.nobody_hangs(case)
    else:
        verdict, why = standing.tempered(case, judged(case))
        notes += [why] if why else []
    case = Case((replace(evidence, notes=(*evidence.notes, *notes)),))
    return Diagnosis(where.title, case, verdict, tuple(notes))
