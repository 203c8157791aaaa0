"""What a check says: a verdict, what was seen, what to do. Pure.

What always holds: what is not well comes with what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"
VERDICTS = (OK, NOTE, PROBLEM)
"""From good to bad. A note is worth knowing; with a problem some training will fail or go unsupervised."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    """What was looked at: `shared memory`."""
    verdict: str
    """One of `VERDICTS`."""
    what: str
    """What was seen, in words."""
    advice: str = ""
    """What to do; empty where all is well."""


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, OK, what)


def note(check: str, what: str, advice: str) -> Finding:
    """Worth knowing."""
    return Finding(check, NOTE, what, advice)


def problem(check: str, what: str, advice: str) -> Finding:
    """Something will fail."""
    return Finding(check, PROBLEM, what, advice)


def worst(findings: Iterable[Finding]) -> str:
    """The worst verdict among them; `OK` of none."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default=OK)
