"""Findings, and how they are printed: one line each for people, one object for programs. Pure.

Always holds: a finding is one line, whatever the names of files and hosts contain.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from ..visible import escaped

OK, NOTE, PROBLEM = "ok", "note", "problem"
VERDICTS = (OK, NOTE, PROBLEM)
"""From good to bad. A note is worth knowing; with a problem some trainings fail or run without supervision."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    """The name of the check: `shared memory`."""
    verdict: str
    """One of `VERDICTS`."""
    what: str
    """The facts."""
    advice: str = ""
    """What to do, as sentences; empty for `OK` only."""


def ok(check: str, what: str) -> Finding:
    """Nothing to do."""
    return Finding(check, OK, what)


def note(check: str, what: str, advice: str) -> Finding:
    """Worth knowing."""
    return Finding(check, NOTE, what, advice)


def problem(check: str, what: str, advice: str) -> Finding:
    """Some trainings will fail."""
    return Finding(check, PROBLEM, what, advice)


def worst(findings: Iterable[Finding]) -> str:
    """The worst verdict among the findings; `OK` of none."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default=OK)


def report(findings: Sequence[Finding]) -> str:
    """The lines, and a last one with the number of problems and notes."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        text = ". ".join(part for part in (finding.what, finding.advice) if part)
        lines.append(escaped(f"{finding.verdict:<7}  {finding.check:<{width}}  {text}"))
    verdicts = Counter(finding.verdict for finding in findings)
    numbers = [count(verdicts[verdict], verdict) for verdict in (PROBLEM, NOTE) if verdicts[verdict]]
    summary = f"{' and '.join(numbers) or 'no problem'} in {count(len(findings), 'check')}"
    return "\n".join([*lines, summary, ""])


def as_json(findings: Sequence[Finding], version: str, nproc: int, script: str | None) -> str:
    """The object that `docs/doctor.md` describes."""
    report = {
        "holdfast": version,
        "nproc_per_node": nproc,
        "script": None if script is None else escaped(script),
        "verdict": worst(findings),
        "findings": [{key: escaped(text) for key, text in asdict(each).items()} for each in findings],
    }
    return json.dumps(report, indent=2) + "\n"


def size(number: float) -> str:
    """A number of bytes: `1.5 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f} bytes"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """`a, b, c`, and how many more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
