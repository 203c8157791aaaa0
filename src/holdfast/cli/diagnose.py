"""`holdfast diagnose PID|RUN_DIR`: which rank hangs in a job that still runs, where, and the evidence for it.

Does not cover: what is captured; that is `incidents.diagnose`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import TYPE_CHECKING

from ..fault_tolerance.errors import ConfigError
from .options import STDOUT, check_html, put_page

if TYPE_CHECKING:
    from ..incidents.diagnose.diagnose import Diagnosis

LEAST, MOST = 0.2, 60.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "diagnose",
        help="report which rank of a running job hangs, where, and the evidence for it",
        description="Report which rank hangs in a job that runs on this node, started by ft_launcher, torchrun or "
        "anything else, where, and the evidence for it; or where each rank is, if none hangs. The job is not harmed, "
        "and only what is asked for is written.",
        epilog="exit codes: 0 a report; 2 there is nothing to diagnose, or it is not permitted: one line has the "
        "reason.",
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
        help="capture evidence for at most S seconds; slow steps need more (default: 2)",
    )
    parser.add_argument("--json", action="store_true", help="print all evidence, as in incident.json")
    parser.add_argument(
        "--html", metavar="FILE", help="also write it as one page for a browser; -: print the page instead"
    )
    return parser


def run(arguments: argparse.Namespace) -> str:
    """What the command prints. Raises HoldfastError where there is nothing to diagnose."""
    from ..incidents.diagnose.diagnose import diagnose
    from ..incidents.diagnose.find_job import find_job

    seconds, html = _seconds(arguments.seconds), arguments.html
    if html is not None:
        check_html(html)
    job = find_job(arguments.job)
    try:
        found = diagnose(job, seconds)
    finally:
        job.close()
    lines = found.lines()
    if html is not None:
        from ..incidents.report.page import page

        text = put_page(html, page(found.case, found.judgement), found.title)
        if html == STDOUT:
            return text
        lines.append(f"  as a page:  {os.path.abspath(html)}")
    return _as_json(found) if arguments.json else "\n".join([*lines, ""])


def _as_json(found: Diagnosis) -> str:
    from ..incidents.report.store import Record, record_text

    node = found.case.nodes[0]
    record = Record(0, node.run_id, node.cycle, time.time(), found.judgement, found.case)
    return json.dumps({**json.loads(record_text(record)), "looked_at": found.title}, indent=1) + "\n"


def _seconds(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        found = float("nan")
    if not LEAST <= found <= MOST:
        raise ConfigError(f"--seconds {given}: give a number from {LEAST:g} to {MOST:g}")
    return found
