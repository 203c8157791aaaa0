"""`holdfast incidents [RUN_DIR [N]] [--json] [--html FILE]`: what went wrong in a job, or which runs there are.

Does not cover: how incidents are found; that is `journal.incident_list`. Their reports; those are `incidents.report`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ..fault_tolerance.errors import HoldfastError
from .whole_number import whole_number

if TYPE_CHECKING:
    from ..incidents.report.folder import Kept
    from ..journal.run_list import Run


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "incidents",
        help="list what went wrong, who, and how long until the job went on; or show the report of one of these",
        description="List what went wrong in a job, one line each, from its journal; with a number from that list "
        "show this incident's report: who did it, where, and how we know. For a folder with several run directories "
        "in it, list the runs.",
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        help="the job's run directory (ft_launcher --ft-run-dir), or a folder of such, or the folder of one incident "
        "(RUN_DIR/incidents/NNNN); default: where jobs without one are kept",
    )
    parser.add_argument(
        "number", metavar="N", nargs="?", type=whole_number, help="show the report of incident N of the list"
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write the report's page, one HTML file, to FILE (- is standard output)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON list instead of a table; of one incident all that is known",
    )
    return parser


def text(arguments: argparse.Namespace) -> str:
    """What the command prints. Raises HoldfastError where there is nothing to read."""
    from ..incidents.report.folder import kept_at
    from ..journal.run_list import default_runs, holds_journal, runs_in

    run_dir: str | None = arguments.run_dir
    if arguments.html is not None and arguments.json:
        raise HoldfastError("--html and --json are two forms of one report: give one of them.")
    if run_dir is not None and arguments.number is None and (kept := kept_at(run_dir)):
        return _report(kept, arguments) or _nothing_told(kept)
    if arguments.html is not None and arguments.number is None:
        raise HoldfastError("--html is for one incident: holdfast incidents RUN_DIR N --html FILE.")
    if run_dir is None:
        return _runs(default_runs(), as_json=arguments.json)
    if not holds_journal(run_dir) and (runs := runs_in([run_dir])):
        if arguments.number is not None:
            raise HoldfastError(
                f"{run_dir} has {len(runs)} runs in it. Name one: holdfast incidents {run_dir} lists them."
            )
        return _runs(runs, as_json=arguments.json)
    return _incidents(run_dir, arguments)


def _incidents(run_dir: str, arguments: argparse.Namespace) -> str:
    from ..incidents.report.kept import reports
    from ..journal.incident_list import incidents
    from ..journal.reader import read_run
    from ..journal.run_list import beside
    from ..journal.table import incident_table
    from ..visible import escaped

    events = read_run(run_dir)
    found = incidents(events)
    terminal = sys.stdout is not None and sys.stdout.isatty()
    if (number := arguments.number) is not None:
        if number > len(found):
            many = f"the last is {len(found)}" if found else "it has none"
            raise HoldfastError(f"{run_dir}: there is no incident {number}; {many}.")
        kept = reports(run_dir, events, found).get(number)
        if kept and (told := _report(kept, arguments)):
            return told
        _only_the_line(run_dir, arguments)
        chosen = found[number - 1]
        verdict = f"verdict: {escaped(chosen.verdict)}\n" if chosen.verdict else ""
        missing = f"incident {number} has no report; the journal says:\n"
        return missing + incident_table([chosen], terminal=terminal) + verdict
    if arguments.json:
        kept_reports = reports(run_dir, events, found)
        paths = {number: os.path.abspath(kept.path) for number, kept in kept_reports.items()}
        rows = [{**incident.to_dict(), "report": paths.get(incident.number)} for incident in found]
        return json.dumps(rows, indent=2) + "\n"
    others = [
        f"another job ran here at the same time: holdfast incidents {shlex.quote(path)}\n"
        for path in beside(run_dir)
    ]
    return incident_table(found, terminal=terminal) + "".join(others)


def _report(kept: Kept, arguments: argparse.Namespace) -> str | None:
    """One incident in the form that is wanted; None where nobody has told anything of it."""
    from ..incidents.report.kept import record_of, report_text

    if not arguments.json and arguments.html is None:
        return report_text(kept)
    record = record_of(kept)
    if record is None:
        return None
    if arguments.json:
        from ..incidents.report.record import record_text

        return record_text(record)
    from ..incidents.report.page import page

    html = page(record.case, record.verdict, number=kept.number)
    if arguments.html == "-":
        return html
    # The page has what the report has, and nobody else may read that either.
    with open(arguments.html, "w", encoding="utf-8", errors="backslashreplace", opener=_private) as file:
        file.write(html)
    return f"page of incident {kept.number:04d} in {arguments.html}\n"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _only_the_line(run_dir: str, arguments: argparse.Namespace) -> None:
    if arguments.json or arguments.html is not None:
        shown = f"holdfast incidents {run_dir} {arguments.number}"
        raise HoldfastError(
            f"incident {arguments.number} has no report; {shown} shows what the journal says."
        )


def _nothing_told(kept: Kept) -> NoReturn:
    raise HoldfastError(f"{kept.path}: no node has told anything of this incident yet.")


def _runs(runs: Sequence[Run], *, as_json: bool) -> str:
    from ..journal.table import run_table

    return json.dumps([run.to_dict() for run in runs], indent=2) + "\n" if as_json else run_table(runs)
