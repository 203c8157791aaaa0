"""`holdfast goodput [RUN_DIR]`: where the time of a job went, and what its failures cost.

Does not cover: how the time is accounted for; that is `journal.goodput`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..fault_tolerance.errors import HoldfastError
from ..visible import escaped
from .options import STDOUT, check_html, one_run, put_page

if TYPE_CHECKING:
    from ..journal.goodput import Goodput, JobNow

BAR = 40
"""Characters of a bar for all of the time."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "goodput",
        help="show which share of a job's time was training, and what took the rest",
        description="Account for the time of a job, from its journal: training that was kept and lost, checkpointing, "
        "validation, waiting for data, failures until they were noticed, restarts, start-up and waiting.",
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        help="the job's run directory (ft_launcher --ft-run-dir); default: the newest run for which none was chosen",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    form.add_argument(
        "--html",
        metavar="FILE",
        help="write it over time, as one page for a browser; -: print the page instead",
    )
    return parser


def run(arguments: argparse.Namespace) -> str:
    """What the command prints. Raises HoldfastError where there is nothing to read."""
    from ..views.job import read_job

    if arguments.html is not None:
        check_html(arguments.html)
    run_dir = one_run(arguments.run_dir)
    job = read_job(run_dir, time.time())
    found = job.ledger
    if found is None:
        raise HoldfastError(
            f"{run_dir}: no event in its journal can be read, so nothing is known of its time."
        )
    if arguments.html is not None:
        return put_page(arguments.html, _page(run_dir, job, found, arguments.html), run_dir)
    if arguments.json:
        facts = asdict(replace(found, spans=(), rates=()))
        del facts["spans"], facts["rates"]  # over time: for the page
        for attempt in facts["attempts"]:
            del attempt["cycle"]
        more = {
            "end": job.end,
            "wall": found.wall,
            "share": found.share,
            "seconds_between_failures": found.seconds_between_failures,
        }
        return json.dumps({**facts, **more}, indent=2) + "\n"
    return "\n".join([*_table(run_dir, found, job.end), ""])


def _page(run_dir: str, job: JobNow, found: Goodput, path: str) -> str:
    from ..incidents.report.store import REPORT, incident_in
    from ..journal.reader import stream_run
    from ..straggler.record import KIND
    from ..views.goodput_page import page
    from ..views.heat_map import heat_map

    folder = os.getcwd() if path == STDOUT else os.path.dirname(os.path.abspath(path))
    links = {
        incident.number: quote(os.fsencode(os.path.relpath(os.path.join(stored.path, REPORT), folder)))
        for incident in job.incidents
        if (stored := incident_in(run_dir, incident.report))
        and os.path.isfile(os.path.join(stored.path, REPORT))
    }
    heat = heat_map(stream_run(run_dir, {KIND}, of_ranks=True))
    counts, means, again = _facts(found)
    end = [job.end] if job.end else []
    return page(found, job.incidents, links, heat, [*counts, *means, again, *end], os.path.abspath(run_dir))


def _facts(found: Goodput) -> tuple[list[str], list[str], str]:
    """In words: counts, means, and how many steps were done again."""
    from ..autoresume.policy import duration

    def several(count: int, name: str) -> str:
        return f"{count} {name}{'s' if count != 1 else ''}"

    counts = [
        several(len(found.attempts), "attempt"),
        several(found.cycles, "cycle"),
        several(found.failures, "failure"),
    ]
    means = [
        f"{title} {duration(seconds)}"
        for title, seconds in (
            ("one failure in", found.seconds_between_failures),
            ("noticed after", found.seconds_to_detect),
            ("trained again after", found.seconds_to_recover),
        )
        if seconds is not None
    ]
    again = "how many steps were done again is not known, since they were counted and not reported"
    if found.lost_steps is not None:
        again = f"{several(found.lost_steps, 'step')} done again"
    return counts, means, again


def _table(run_dir: str, found: Goodput, end: str) -> list[str]:
    from ..autoresume.policy import duration
    from ..journal.goodput import BUCKETS

    counts, means, again = _facts(found)
    lines = [
        f"goodput {found.share:.1%} of {duration(found.wall)}: {', '.join(counts)}, {escaped(run_dir)}",
        "",
    ]
    for name in BUCKETS:
        if spent := found.seconds[name]:
            share = spent / found.wall
            bar = "#" * round(BAR * share)
            lines.append(f"{name:<13} {duration(spent):>11} {share:>6.1%}  {bar}".rstrip())
    if means:
        lines += ["", f"{', '.join(means)} (means); {again}"]
    for title, counted in ("by kind", found.by_kind), ("by node", found.by_node):
        rows = [f"{escaped(name)} {count}" for name, count in list(counted.items())[:8]]
        more = f", and {len(counted) - 8} more" if len(counted) > 8 else ""
        lines += [f"{title}: {', '.join(rows)}{more}"] if rows else []
    return [*lines, "", escaped(end)] if end else lines
