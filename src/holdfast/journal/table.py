"""Incidents and runs as text for people, one line each.

Does not cover: JSON; `Incident` and `Run` give that themselves.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime

from holdfast.visible import escaped

from .incident_list import Incident
from .run_list import Run


def incident_table(found: Sequence[Incident], *, terminal: bool) -> str:
    """A table and its sum; cut to the terminal's width, or whole for a file or another program."""
    if not found:
        return "no incidents\n"
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("#", "noticed", "what", "who"):
        table.add_column(title, no_wrap=True, justify="right" if title == "#" else "left")
    table.add_column("how we know", no_wrap=True, overflow="ellipsis", ratio=1 if terminal else None)
    for title in ("unnoticed", "restarted", "resumed"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("outcome", no_wrap=True)
    for incident in found:
        table.add_row(*(Text(escaped(cell)) for cell in _row(incident)))
    out = (
        Console(highlight=False) if terminal else Console(highlight=False, width=100_000, file=io.StringIO())
    )
    with out.capture() as text:  # rich itself would answer a closed pipe with exit code 1
        out.print(table)
        out.print(_summary(found))
    return text.get()


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


def _who(incident: Incident) -> str:
    if incident.rank is None:
        return f"node {incident.node}, cycle {incident.cycle}"
    return f"rank {incident.rank} (node {incident.node}, pid {incident.pid}), cycle {incident.cycle}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _summary(found: Sequence[Incident]) -> str:
    lost = [incident.lost_seconds for incident in found if incident.lost_seconds is not None]
    many = f"{len(found)} incident{'s' if len(found) > 1 else ''}"
    return f"{many}, {sum(lost):.2f} s without training" if lost else many
