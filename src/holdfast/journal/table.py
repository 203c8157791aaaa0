"""Incidents and runs as text for people, one line each.

Does not cover: JSON; `Incident` and `Run` give that themselves.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime

from holdfast.visible import escaped

from .incident_list import Incident
from .run_list import Run

KNOWN = "how we know"
TITLES = ("#", "noticed", "what", "who", KNOWN, "unnoticed", "restarted", "resumed", "outcome")
DISPENSABLE = (("unnoticed", "restarted", "resumed"), ("outcome",), ("noticed",), (KNOWN,))
"""What a narrow terminal goes without, first to last: number, kind and who are always there."""

LEGIBLE = 24
"""Columns that `how we know` is worth showing in."""

NARROWEST = 32

BETWEEN = 3
"""Columns between two columns, as rich draws them."""


def incident_table(found: Sequence[Incident], *, terminal: bool) -> str:
    """A table and its sum; cut to the terminal's width, or whole for a file or another program."""
    if not found:
        return "no incidents\n"
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = max(shutil.get_terminal_size().columns, NARROWEST) if terminal else 100_000
    cells = _fitting(found, width) if terminal else _whole(found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in cells:
        right = title in ("#", "unnoticed", "restarted", "resumed")
        table.add_column(title, no_wrap=True, justify="right" if right else "left")
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, row))
    # With a height, or rich takes a terminal that it calls dumb for one of 80 columns.
    out = Console(highlight=False, width=width, height=25, file=None if terminal else io.StringIO())
    with out.capture() as text:  # rich itself would answer a closed pipe with exit code 1
        out.print(table)
        out.print(_summary(found))
    return text.get()


def _whole(found: Sequence[Incident]) -> dict[str, list[str]]:
    """The columns by title."""
    rows = [_row(incident) for incident in found]
    return {title: [escaped(row[index]) for row in rows] for index, title in enumerate(TITLES)}


def _fitting(found: Sequence[Incident], width: int) -> dict[str, list[str]]:
    """The columns that a terminal of this width has room for, `how we know` and at last `who` cut to what is left."""
    cells = _whole(found)
    for dispensable in DISPENSABLE:
        if _width(cells) <= width:
            break
        for title in dispensable:
            del cells[title]
    if KNOWN not in cells:
        cells["who"] = [escaped(_who(incident, short=True)) for incident in found]
    last = KNOWN if KNOWN in cells else "who"
    left = width - _width({title: column for title, column in cells.items() if title != last}) - BETWEEN
    cells[last] = [cell if len(cell) <= left else f"{cell[: left - 1]}…" for cell in cells[last]]
    return cells


def _width(cells: Mapping[str, Sequence[str]]) -> int:
    wide = {title: max(map(len, (title, *column))) for title, column in cells.items()}
    if KNOWN in wide:
        wide[KNOWN] = min(wide[KNOWN], LEGIBLE)
    return sum(wide.values()) + BETWEEN * (len(wide) - 1)


def run_table(runs: Sequence[Run]) -> str:
    """When each run began, how many incidents it had, and where it is: whole, since that is to be copied."""
    lines = [f"{'begun':<19}   incidents   run"]
    for run in runs:
        begun = "-" if run.begun is None else _moment(run.begun)
        many = "?" if run.incidents is None else str(run.incidents)
        lines.append(
            f"{begun:<19}   {many:>9}   {escaped(run.path)}"
            + (f" ({escaped(run.problem)})" if run.problem else "")
        )
    return "\n".join([*lines, ""])


def _row(incident: Incident) -> tuple[str, ...]:
    followers = f"; also rank {', '.join(map(str, incident.followers))}" if incident.followers else ""
    return (
        str(incident.number),
        _moment(incident.t),
        incident.kind,
        _who(incident),
        incident.what + followers,
        _seconds(incident.unnoticed_seconds),
        _seconds(incident.restart_seconds),
        _seconds(incident.resume_seconds),
        incident.outcome,
    )


def _moment(t: float) -> str:
    return datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M:%S")


def _who(incident: Incident, *, short: bool = False) -> str:
    if incident.rank is None:
        return f"node {incident.node}" if short else f"node {incident.node}, cycle {incident.cycle}"
    if short:
        return f"rank {incident.rank} ({incident.node})"
    return f"rank {incident.rank} (node {incident.node}, pid {incident.pid}), cycle {incident.cycle}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _summary(found: Sequence[Incident]) -> str:
    lost = [incident.lost_seconds for incident in found if incident.lost_seconds is not None]
    many = f"{len(found)} incident{'s' if len(found) > 1 else ''}"
    return f"{many}, {sum(lost):.2f} s without training" if lost else many
