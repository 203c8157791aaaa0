"""The command `holdfast`: readings of what a job left behind.

    holdfast incidents [RUN_DIR] [--json]

Owns the command line and where results go. What always holds: results go to standard output, and an error, also one
of standard output itself, is one line on standard error with exit code 2; nothing here writes to a run directory.

Does not cover: starting jobs; that is `ft_launcher`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from . import __version__
from .fault_tolerance.errors import HoldfastError

if TYPE_CHECKING:
    from .journal.run_list import Run

USAGE = 2


def console() -> int:
    """The entry point; returns the exit code."""
    try:
        code = _exit_code(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where its error can still be told
        return code
    except BrokenPipeError:  # `holdfast incidents … | head`: the reader has seen enough
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        print(f"holdfast: error: standard output: {error.strerror}; the result is lost", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code, and raises SystemExit for a wrong command line.

    An `OSError` is one of standard output.
    """
    arguments = _parser().parse_args(argv)
    try:
        text = _incidents(arguments.run_dir, as_json=arguments.json)
    except HoldfastError as error:
        print(f"holdfast: error: {error}", file=sys.stderr)
        return USAGE
    if sys.stdout is None:
        print("holdfast: error: standard output is closed; the result is lost", file=sys.stderr)
        return USAGE
    sys.stdout.write(text)
    return 0


def _exit_code(argv: Sequence[str]) -> int:
    try:
        return main(argv)
    except SystemExit as stop:  # argparse: --help, --version, or an error that it has already said
        return stop.code if isinstance(stop.code, int) else 0


def _drop_output() -> None:
    """Or the interpreter would try once more to flush it at its end, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        description="List what went wrong in a job, one line each, from its journal; or, for a folder with several "
        "run directories in it, one line for each run.",
    )
    incidents.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        help="the job's run directory (ft_launcher --ft-run-dir), or a folder of such; "
        "default: where jobs without one are kept",
    )
    incidents.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    return parser


def _incidents(run_dir: str | None, *, as_json: bool) -> str:
    from .journal.incident_list import incidents
    from .journal.reader import read_run
    from .journal.run_list import beside, holds_journal, runs_in
    from .journal.table import incident_table

    if run_dir is None:
        return _runs(_default_runs(), as_json=as_json)
    if not holds_journal(run_dir) and (runs := runs_in([run_dir])):
        return _runs(runs, as_json=as_json)
    found = incidents(read_run(run_dir))
    if as_json:
        return json.dumps([incident.to_dict() for incident in found], indent=2) + "\n"
    others = [
        f"another job ran here at the same time: holdfast incidents {path}\n" for path in beside(run_dir)
    ]
    return incident_table(found, terminal=sys.stdout is not None and sys.stdout.isatty()) + "".join(others)


def _runs(runs: Sequence[Run], *, as_json: bool) -> str:
    from .journal.table import run_table

    return json.dumps([run.to_dict() for run in runs], indent=2) + "\n" if as_json else run_table(runs)


def _default_runs() -> list[Run]:
    from .journal.run_dir import default_folders
    from .journal.run_list import runs_in

    folders = default_folders()
    runs = runs_in(folders)
    if not runs:
        places = " or ".join(folders)
        raise HoldfastError(f"no run in {places}. Name a job's run directory (ft_launcher --ft-run-dir).")
    return runs
