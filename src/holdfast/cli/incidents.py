"""`holdfast incidents [RUN_DIR] [--json]`: what went wrong in a job, or which runs there are.

Does not cover: how incidents are found; that is `journal.incident_list`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..journal.run_list import Run


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "incidents",
        help="list what went wrong, who, and how long until the job went on",
        description="List what went wrong in a job, one line each, from its journal; or, for a folder with several "
        "run directories in it, one line for each run.",
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        help="the job's run directory (ft_launcher --ft-run-dir), or a folder of such; "
        "default: where jobs without one are kept",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    return parser


def text(arguments: argparse.Namespace) -> str:
    """What the command prints. Raises HoldfastError where there is nothing to read."""
    from ..journal.incident_list import incidents
    from ..journal.reader import read_run
    from ..journal.run_list import beside, default_runs, holds_journal, runs_in
    from ..journal.table import incident_table

    run_dir: str | None = arguments.run_dir
    if run_dir is None:
        return _runs(default_runs(), as_json=arguments.json)
    if not holds_journal(run_dir) and (runs := runs_in([run_dir])):
        return _runs(runs, as_json=arguments.json)
    found = incidents(read_run(run_dir))
    if arguments.json:
        return json.dumps([incident.to_dict() for incident in found], indent=2) + "\n"
    others = [
        f"another job ran here at the same time: holdfast incidents {shlex.quote(path)}\n"
        for path in beside(run_dir)
    ]
    return incident_table(found, terminal=sys.stdout is not None and sys.stdout.isatty()) + "".join(others)


def _runs(runs: Sequence[Run], *, as_json: bool) -> str:
    from ..journal.table import run_table

    return json.dumps([run.to_dict() for run in runs], indent=2) + "\n" if as_json else run_table(runs)
