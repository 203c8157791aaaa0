"""`holdfast incidents [RUN_DIR [N]] [--json] [--html FILE]`: what went wrong in a job, or which runs there are.

Does not cover: how incidents are found; that is `journal.incidents`. Their reports; those are `incidents.report`.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..fault_tolerance.errors import HoldfastError
from ..visible import escaped
from .options import check_html, moment, one_run, put_page, table, table_width, whole_number

if TYPE_CHECKING:
    from ..incidents.report.store import Record, StoredIncident
    from ..journal.incidents import Incident
    from ..journal.reader import Run

COLUMNS = {
    "#": 0,
    "noticed": 110,
    "what": 0,
    "who": 0,
    "reason": 80,
    "detected after": 190,
    "restarted after": 190,
    "resumed after": 190,
    "outcome": 140,
}
"""The columns, each with the width of a terminal from which on it is shown."""

RIGHT = ("#", "detected after", "restarted after", "resumed after")
"""Columns of numbers."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "incidents",
        help="list what went wrong, who, and how long until the job continued; or show the report of one of these",
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
        "number",
        metavar="N",
        nargs="?",
        type=whole_number(),
        help="show the report of incident N of the list",
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
    parser.add_argument(
        "--rejudge",
        action="store_true",
        help="judge the stored evidence of the incident with the rules of this version, and show what changed",
    )
    return parser


def run(arguments: argparse.Namespace) -> str:
    """What the command prints. Raises HoldfastError where there is nothing to read."""
    from ..incidents.report.store import open_incident
    from ..journal.reader import default_runs, holds_journal, runs_in

    run_dir: str | None = arguments.run_dir
    stored = open_incident(run_dir) if run_dir is not None and arguments.number is None else None
    if arguments.html is not None and arguments.json:
        raise HoldfastError("use either --html or --json, not both.")
    if arguments.html is not None:
        check_html(arguments.html)
    if arguments.rejudge and (arguments.html is not None or (arguments.number is None and stored is None)):
        raise HoldfastError("--rejudge is for one incident: holdfast incidents RUN_DIR N --rejudge [--json].")
    if stored is not None:
        if shown := _report(stored, arguments):
            return shown
        raise HoldfastError(f"{stored.path}: no evidence has been reported for this incident yet.")
    if arguments.html is not None and arguments.number is None:
        raise HoldfastError("--html is for one incident: holdfast incidents RUN_DIR N --html FILE.")
    if run_dir is None:
        return _runs(default_runs(count=True), as_json=arguments.json)
    if not holds_journal(run_dir) and (runs := runs_in([run_dir], count=True)):
        if arguments.number is not None:
            one_run(run_dir)
        return _runs(runs, as_json=arguments.json)
    return _incidents(run_dir, arguments)


def _incidents(run_dir: str, arguments: argparse.Namespace) -> str:
    from ..incidents.report.store import incident_in
    from ..journal.incidents import KINDS, incidents
    from ..journal.reader import STARTS, concurrent_runs, read_run, stream_run
    from ..views.job import end_without_record

    found = incidents(stream_run(run_dir, KINDS))
    if (number := arguments.number) is not None:
        if number > len(found):
            many = f"the last is {len(found)}" if found else "it has none"
            raise HoldfastError(f"{run_dir}: there is no incident {number}; {many}.")
        chosen = found[number - 1]
        stored = incident_in(run_dir, chosen.report)
        if stored and (shown := _report(stored, arguments)):
            return shown
        if arguments.json or arguments.rejudge or arguments.html is not None:
            command = f"holdfast incidents {run_dir} {number}"
            raise HoldfastError(f"incident {number} has no report; {command} shows what the journal has.")
        verdict = f"verdict: {escaped(chosen.verdict)}\n" if chosen.verdict else ""
        missing = f"incident {number} has no report; from the journal:\n"
        return missing + _incident_table([chosen]) + verdict
    if arguments.json:
        rows = []
        for incident in found:
            stored = incident_in(run_dir, incident.report)
            rows.append({**incident.to_dict(), "report": stored.path if stored else None})
        if end := end_without_record(run_dir):
            rows.append({**end.to_dict(), "number": None, "report": None})
        return json.dumps(rows, indent=2) + "\n"
    others = [
        f"another job ran here at the same time: holdfast incidents {shlex.quote(path)}\n"
        for path in concurrent_runs(run_dir)
    ]
    if not found and not read_run(run_dir, STARTS):
        raise HoldfastError(
            f"{run_dir}: no event in its journal can be read, so incidents are not known. A full disk leaves an empty "
            "journal."
        )
    end = end_without_record(run_dir)
    return _incident_table(found) + (f"{end.what}\n" if end else "") + "".join(others)


def _report(stored: StoredIncident, arguments: argparse.Namespace) -> str | None:
    """One incident in the form that is wanted; None where no evidence is stored."""
    from ..incidents.report.store import record_text

    if arguments.rejudge:
        record = stored.record()
        return _rejudged(record, as_json=arguments.json) if record else None
    if not arguments.json and arguments.html is None:
        return stored.report()
    record = stored.record()
    if record is None:
        return None
    if arguments.json:
        return record_text(record)
    from ..incidents.report.page import page

    html = page(record.case, record.judgement, number=stored.number)
    return put_page(arguments.html, html, f"incident {stored.number:04d}")


def _rejudged(record: Record, *, as_json: bool) -> str:
    from ..incidents.report.text import rejudged_lines
    from ..incidents.rules import judge
    from ..incidents.wire import encoded

    then, now = record.judgement, judge(record.case)
    if as_json:
        found = {"changed": then.verdict != now.verdict, "then": encoded(then), "now": encoded(now)}
        return json.dumps({"number": record.number, **found}, indent=1) + "\n"
    return "\n".join([*rejudged_lines(then, now, number=record.number), ""])


def _incident_table(found: Sequence[Incident]) -> str:
    """A table and its sum; cut to the terminal's width, or whole for a file or another program."""
    if not found:
        return "no incidents\n"
    width = table_width()
    shown = [title for title, least in COLUMNS.items() if width >= least]
    rows = [_row(incident, is_short="reason" not in shown) for incident in found]
    lines = table(shown, rows, RIGHT, "reason" if "reason" in shown else "who", width)
    return "\n".join([*lines, _summary(found), ""])


def _runs(runs: Sequence[Run], *, as_json: bool) -> str:
    """When each run began, how many incidents it had, and where it is: whole, since that is to be copied."""
    if as_json:
        return json.dumps([asdict(run) for run in runs], indent=2) + "\n"
    lines = [f"{'begun':<19}   incidents   run"]
    for run in runs:
        begun = "-" if run.begun is None else moment(run.begun)
        count = "?" if run.incidents is None else str(run.incidents)
        problem = f" ({escaped(run.problem)})" if run.problem else ""
        lines.append(f"{begun:<19}   {count:>9}   {escaped(run.path)}{problem}")
    return "\n".join([*lines, ""])


def _row(incident: Incident, *, is_short: bool) -> dict[str, str]:
    from ..incidents.rules.sentence import ranks

    pid = "" if is_short else f", pid {incident.pid}"
    who = f"node {incident.node}"
    if incident.rank is None and incident.kind in ("hang", "crash", "exit"):
        who = "no rank named"
    elif incident.rank is not None:
        who = f"rank {incident.rank} ({who}{pid})"
    followers = f"; {ranks(incident.followers)} followed" if incident.followers else ""
    return {
        "#": str(incident.number),
        "noticed": moment(incident.t),
        "what": incident.kind,
        "who": who if is_short else f"{who}, cycle {incident.cycle}",
        "reason": incident.what + followers,
        "detected after": _seconds(incident.unnoticed_seconds),
        "restarted after": _seconds(incident.restart_seconds),
        "resumed after": _seconds(incident.resume_seconds),
        "outcome": incident.outcome,
    }


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _summary(found: Sequence[Incident]) -> str:
    lost = [incident.lost_seconds for incident in found if incident.lost_seconds is not None]
    count = f"{len(found)} incident{'s' if len(found) > 1 else ''}"
    return f"{count}, {sum(lost):.2f} s without training" if lost else count
