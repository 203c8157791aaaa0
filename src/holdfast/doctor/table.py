"""Findings as lines for people and as an object for programs. Pure.

What always holds: one line for each finding, whatever names of files and hosts have in them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..visible import escaped
from .finding import NOTE, PROBLEM, VERDICTS, Finding, worst
from .quantity import count


def report(findings: Sequence[Finding]) -> str:
    """The lines, and a last one that sums up."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = [_line(finding, width) for finding in findings]
    return "\n".join([*lines, _summary(findings)]) + "\n"


def as_json(findings: Sequence[Finding], version: str, nproc: int, script: str | None) -> str:
    """`docs/doctor.md` says what is in it."""
    told = [
        {
            "check": finding.check,
            "verdict": finding.verdict,
            "what": escaped(finding.what),
            "advice": escaped(finding.advice),
        }
        for finding in findings
    ]
    whole = {
        "holdfast": version,
        "nproc_per_node": nproc,
        "script": None if script is None else escaped(script),
        "verdict": worst(findings),
        "findings": told,
    }
    return json.dumps(whole, indent=2) + "\n"


def _line(finding: Finding, width: int) -> str:
    advice = f". To do: {finding.advice}" if finding.advice else ""
    return escaped(f"{finding.verdict:<7}  {finding.check:<{width}}  {finding.what}{advice}")


def _summary(findings: Sequence[Finding]) -> str:
    numbers = {verdict: sum(f.verdict == verdict for f in findings) for verdict in VERDICTS}
    found = [
        count(numbers[verdict], noun)
        for verdict, noun in ((PROBLEM, "problem"), (NOTE, "note"))
        if numbers[verdict]
    ]
    return f"{' and '.join(found) or 'nothing wrong'} in {count(len(findings), 'check')}"
