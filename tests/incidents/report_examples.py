"""The examples of reports in the documentation, made by the rules from fixtures/.

`python -m tests.incidents.report_examples` writes them into the pages, each between `<!-- example: NAME -->` and
the end of its code block.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from holdfast.incidents.diagnose.diagnose import Diagnosis
from holdfast.incidents.report.store import read_record
from holdfast.incidents.report.text import rejudged_lines, report_lines
from holdfast.incidents.rules import judge
from tests.incidents.cases_for_reports import FIXTURES, judged

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("incident-reports.md", "diagnose.md")


def report() -> list[str]:
    """A whole report."""
    lines = report_lines(*judged("data_loader"), number=3, folder="runs/a/incidents/0003")
    return ["$ holdfast incidents runs/a 3", *lines]


def head(name: str) -> list[str]:
    """The first lines of a report, up to its evidence."""
    lines = report_lines(*judged(name))
    return lines[: next(index for index, line in enumerate(lines) if line.startswith("  Evidence"))]


def rejudged() -> list[str]:
    """A report of an older version, judged again."""
    record = read_record(FIXTURES.joinpath("old_rules.json").read_text(), "old_rules.json")
    lines = rejudged_lines(record.judgement, judge(record.case), number=record.number)
    return ["$ holdfast incidents runs/a 2 --rejudge", *lines]


def diagnosed(name: str, asked: str, most: int) -> list[str]:
    """The first lines of a diagnosis."""
    case, judgement = judged(name)
    title = f"ft_launcher, process 28862, cycle 0, {len(case.ranks)} ranks on node gpu-12"
    lines = Diagnosis(title, case, judgement, ()).lines()
    return [f"$ holdfast diagnose {asked}", *lines[:most], *(["  ..."] if len(lines) > most else [])]


EXAMPLES: dict[str, Callable[[], list[str]]] = {
    "report": report,
    "heads": lambda: [
        *head("dead_storage"),
        "",
        *head("exception"),
        "",
        *head("segfault"),
        "",
        *head("mismatch"),
    ],
    "rejudged": rejudged,
    "diagnosed": lambda: diagnosed("diagnosed", "runs/a", 9),
    "healthy": lambda: diagnosed("healthy", "28862", 9),
}


def with_examples(page: str) -> str:
    """The page with its examples as the rules of today make them."""

    def block(found: re.Match[str]) -> str:
        text = "\n".join(line.rstrip() for line in EXAMPLES[found[1]]())
        return f"<!-- example: {found[1]} -->\n```console\n{text}\n```\n"

    return re.sub(r"<!-- example: (\w+) -->\n```console\n.*?```\n", block, page, flags=re.DOTALL)


if __name__ == "__main__":
    for name in PAGES:
        path = DOCS / name
        path.write_text(with_examples(path.read_text()))
