"""The command `holdfast`: readings of what a job left behind.

    holdfast incidents RUN_DIR [--json]

Owns the command line and how results look in a terminal. What always holds: results go to standard output, and an
error is one line on standard error with exit code 2; nothing here writes to a run directory.

Does not cover: starting jobs; that is `ft_launcher`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

from . import __version__
from .fault_tolerance.errors import HoldfastError

if TYPE_CHECKING:
    from .journal.incident_list import Incident

USAGE = 2


def console() -> int:
    """The entry point; returns the exit code."""
    try:
        return main(sys.argv[1:])
    except BrokenPipeError:  # `holdfast incidents … | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit would fail to flush
        return 0
    except KeyboardInterrupt:
        return 130


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code, and raises SystemExit for a wrong command line."""
    arguments = _parser().parse_args(argv)
    try:
        _incidents(arguments.run_dir, as_json=arguments.json)
    except HoldfastError as error:
        print(f"holdfast: error: {error}", file=sys.stderr)
        return USAGE
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="holdfast", description="Look at what a job that ft_launcher started left behind.")
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    incidents = commands.add_parser(
        "incidents",
        help="list what went wrong, who, and how long until the job went on",
        description="List what went wrong in a job, one line each, from its journal.",
    )
    incidents.add_argument(
        "run_dir", metavar="RUN_DIR", help="the job's run directory (ft_launcher --ft-run-dir)"
    )
    incidents.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    return parser


def _incidents(run_dir: str, *, as_json: bool) -> None:
    from .journal.incident_list import incidents
    from .journal.reader import read_run

    found = incidents(read_run(run_dir))
    if as_json:
        print(json.dumps([incident.to_dict() for incident in found], indent=2))
    else:
        _print_table(found)
    sys.stdout.flush()


def _print_table(found: Sequence[Incident]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Cut to the terminal's width, one line each; whole when a file or another program reads it.
    out = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=100_000)
    if not found:
        print("no incidents")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("#", "noticed", "what", "who"):
        table.add_column(title, no_wrap=True, justify="right" if title == "#" else "left")
    table.add_column(
        "how we know", no_wrap=True, overflow="ellipsis", ratio=1 if sys.stdout.isatty() else None
    )
    for title in ("unnoticed", "restarted", "resumed"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("outcome", no_wrap=True)
    for incident in found:
        table.add_row(*map(Text, _row(incident)))
    with out.capture() as text:  # rich would answer a closed pipe with exit code 1
        out.print(table)
        out.print(_summary(found))
    sys.stdout.write(text.get())


def _row(incident: Incident) -> tuple[str, ...]:
    followers = f"; also rank {', '.join(map(str, incident.followers))}" if incident.followers else ""
    return (
        str(incident.number),
        datetime.fromtimestamp(incident.t).strftime("%Y-%m-%d %H:%M:%S"),
        incident.kind,
        _who(incident),
        incident.what + followers,
        _seconds(incident.unnoticed_seconds),
        _seconds(incident.restart_seconds),
        _seconds(incident.resume_seconds),
        incident.outcome,
    )


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
