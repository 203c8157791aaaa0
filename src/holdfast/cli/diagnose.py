"""`holdfast diagnose PID|RUN_DIR`: who hangs, where, and how we know, in a job that still runs.

Does not cover: what is looked at; that is `incidents.diagnose`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from ..fault_tolerance.errors import ConfigError

LEAST, MOST = 0.2, 60.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "diagnose",
        help="look at a job that runs, and say who hangs, where, and how we know",
        description="Look at a job that runs on this node, started by ft_launcher, torchrun or anything else, and say "
        "who hangs, where, and how we know; or who is where, if nobody does. The job is not harmed, and nothing is "
        "written but what is asked for.",
        epilog="exit codes: 0 a report; 2 there is nothing to look at, or it may not be looked at: one line says why.",
    )
    parser.add_argument(
        "job",
        metavar="PID|RUN_DIR",
        help="a process of the job (its launcher, a rank, anything below or above them) or any other process; or the "
        "run directory of a job that runs here (./123 for one that is named like a number)",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        default="2",
        help="how long to look, at most; what moves slowly needs more (default: 2)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print all that is known, as incident.json has it"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write it as one page for a browser; -: print that instead"
    )
    return parser


STDOUT = "", "-"
"""In the place of a folder and a name."""


def text(arguments: argparse.Namespace) -> str:
    """What the command prints. Raises HoldfastError where there is nothing to look at."""
    from ..incidents.diagnose.diagnosis import diagnosed, job

    seconds = _seconds(arguments.seconds)
    page = _page(arguments.html)
    where = job(arguments.job)
    try:
        found = diagnosed(where, seconds)
    finally:
        where.close()
    if page == STDOUT:
        from ..incidents.report.page import page as page_of

        return _encodable(page_of(found.case, found.verdict))
    if page is not None:
        from ..incidents.report.files import write_file
        from ..incidents.report.page import page as page_of

        write_file(*page, page_of(found.case, found.verdict))
    if arguments.json:
        return _as_json(found)
    told = found.lines() if page is None else [*found.lines(), f"  as a page:  {os.path.join(*page)}"]
    return _encodable("\n".join([*told, ""]))


def _as_json(found: object) -> str:
    import time

    from ..incidents.diagnose.diagnosis import Diagnosis
    from ..incidents.report.record import Record, record_text

    assert isinstance(found, Diagnosis)
    node = found.case.nodes[0]
    record = Record(0, node.run_id, node.cycle, time.time(), found.verdict, found.case)
    return json.dumps({**json.loads(record_text(record)), "looked_at": found.title}, indent=1) + "\n"


def _seconds(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        found = float("nan")
    if not LEAST <= found <= MOST:
        raise ConfigError(f"--seconds {given}: give a number from {LEAST:g} to {MOST:g}")
    return found


def _page(path: str | None) -> tuple[str, str] | None:
    """Its folder and name; refused before anything is looked at."""
    if path is None:
        return None
    if path == "-":
        return STDOUT
    folder, name = os.path.split(os.path.abspath(path))
    if not path.strip() or os.path.isdir(path) or not name:
        raise ConfigError(f"--html {path!r}: give the name of a file")
    if not os.path.isdir(folder):
        raise ConfigError(f"--html {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--html {path}: {folder} cannot be written to")
    return os.path.realpath(folder), name


def _encodable(told: str) -> str:
    """In signs that standard output can take."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return told.encode(encoding, "backslashreplace").decode(encoding)
