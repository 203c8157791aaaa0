"""`holdfast stragglers [RUN_DIR]`: who is slow, by the reports in a job's journal.

Does not cover: making reports; that is `holdfast.straggler.Detector` in the training program.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..fault_tolerance.errors import HoldfastError
from .options import whole_number

if TYPE_CHECKING:
    from ..straggler.readings.kept import KeptReport

NARROWEST = 60


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "stragglers",
        help="show which ranks are slow: the straggler reports of a job",
        description="Show the straggler reports in a job's journal: who is named as slow in the last one, the scores "
        "of the worst and best ranks, and who was named how often.",
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        help="the job's run directory (ft_launcher --ft-run-dir, or run_dir of Detector.initialize), or a folder of "
        "such; default: the newest run with reports where jobs without a directory are kept",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", metavar="N", type=whole_number(), help="use the last N reports only")
    which.add_argument(
        "--report", metavar="N", type=whole_number(), help="show report N instead of the last one"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the reports as a JSON list, with all that is kept"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="also draw ranks over time into a .png or .svg file (needs matplotlib)"
    )
    return parser


def run(arguments: argparse.Namespace) -> str:
    """What the command prints. Raises HoldfastError where there is nothing to read, or the plot cannot be made."""
    from ..straggler.readings.text import overview

    run_dir, found = _found(arguments.run_dir)
    used = found[-arguments.last :] if arguments.last else found
    shown = used[-1]
    if arguments.report:
        if arguments.report > len(found):
            raise HoldfastError(f"{run_dir}: there is no report {arguments.report}; the last is {len(found)}")
        shown = found[arguments.report - 1]
    if arguments.plot:
        from ..straggler.readings.plot import draw

        draw(used, arguments.plot)
    if arguments.json:
        wanted = [shown] if arguments.report else used
        return json.dumps([report.to_dict() for report in wanted], indent=2) + "\n"
    picture = f"\nPicture in {arguments.plot}\n" if arguments.plot else ""
    return overview(run_dir, used, shown, len(found), _width()) + picture


def _found(path: str | None) -> tuple[str, Sequence[KeptReport]]:
    """The reports of this run, or of the newest run in the folder that has any."""
    from ..journal.reader import default_runs, holds_journal, read_run, runs_in
    from ..straggler.readings.kept import reports

    hint = "They are written by rank 0 under ft_launcher, or with Detector.initialize(run_dir=...)"
    if path is not None and (holds_journal(path) or not (runs := runs_in([path]))):
        found = reports(read_run(path))
        if not found:
            raise HoldfastError(f"{path}: no straggler reports in this run. {hint}.")
        return path, found
    for run in runs if path is not None else default_runs():
        if not run.problem and (found := reports(read_run(run.path))):
            return run.path, found
    raise HoldfastError(f"{path or 'the runs that holdfast incidents lists'}: no straggler reports. {hint}.")


def _width() -> int | None:
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns)
