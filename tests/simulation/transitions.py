"""Which event leads from which phase of the controller to which, as simulated jobs show it; for docs/architecture.md.

`python -m tests.simulation.transitions` writes the table there, from the seeds of the test.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from holdfast.fault_tolerance.launcher.control.controller import PHASES

from .scenarios import scenario
from .search import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
MARKS = "<!-- transitions -->", "<!-- end of transitions -->"
SEEDS = 300
Transition = tuple[str, str, str]


def table(found: set[Transition]) -> str:
    """The rows, by phase in the order of :data:`PHASES`."""
    order = [phase.__name__.upper() for phase in PHASES]
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for before, event, after in sorted(found):
        rows[before, after].append(event)
    lines = ["| phase | next phase | on |", "|---|---|---|"]
    for before, after in sorted(rows, key=lambda row: (order.index(row[0]), order.index(row[1]))):
        lines.append(f"| {before} | {after} | {', '.join(rows[before, after])} |")
    return "\n".join(lines)


def documented() -> set[Transition]:
    """What the page has."""
    text = PAGE.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    rows = re.findall(r"^\| ([A-Z]+) \| ([A-Z]+) \| (.*) \|$", text, flags=re.M)
    return {(before, event, after) for before, after, events in rows for event in events.split(", ")}


def main() -> None:
    """Write the table."""
    found: set[Transition] = set()
    for seed in range(SEEDS):
        found |= run(scenario(seed))[0].transitions
    head, _, rest = PAGE.read_text().partition(MARKS[0])
    tail = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{head}{MARKS[0]}\n{table(found)}\n{MARKS[1]}{tail}")


if __name__ == "__main__":
    main()
