"""The launcher's short form of an incident: who, where, the verdict, and where the report is. Pure.

What always holds: at most `MOST` lines.

Does not cover: how we know; that is the report.
"""

from __future__ import annotations

from ..evidence import Case
from ..verdict import Verdict
from .text import WIDTH, head_lines, shortened

MOST = 8
"""Lines at most."""


def short_lines(case: Case, verdict: Verdict, *, folder: str = "", width: int = WIDTH) -> list[str]:
    """The block of the report, and its place where there is one."""
    for groups in (2, 1, 0):
        lines = head_lines(case, verdict, width, groups)
        if len(lines) < MOST:
            break
    lines = lines[: MOST - 1]
    return [shortened(line) for line in (*lines, *([f"  report: {folder}/report.txt"] if folder else []))]
