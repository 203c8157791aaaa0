"""Writes the table of docs/exit-codes.md from the launcher's own.

    python -m tests.launcher.exit_codes_page

Does not cover: the text around the table.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.fault_tolerance.launcher.exit_codes import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "exit-codes.md"
BEGIN, END = "<!-- begin: exit codes -->", "<!-- end -->"
HEAD = ["| code | when | launchers of the other nodes | requeue? |", "|---|---|---|---|"]


def page(text: str) -> str:
    """`text` with the table as it is today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [f"| {' | '.join(map(str, each.value))} |" for each in Outcome]
    return "\n".join([before + BEGIN, "", *HEAD, *lines, "", END]) + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
