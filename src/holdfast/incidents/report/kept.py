"""The reports that a job has left behind: which of its journal's incidents each belongs to, and what it says.

What always holds: a report is of one incident at most. The run id and the cycle say which; where a run directory was
used again with the same run id, the time does as well. A report that was never finished, since the launcher was killed
before, is made from what the nodes had told.

Does not cover: finding incidents; that is `journal.incident_list`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from holdfast.visible import escaped

from ...journal.cycles import cycles
from ...journal.event import Event
from ...journal.incident_list import WITHOUT_EVIDENCE, Incident
from ..evidence import Case
from .files import read_file
from .folder import RECORD, REPORT, Kept, all_incidents, read_fragments
from .record import Record, ReportUnreadable, read_record
from .text import report_lines


def reports(run_dir: str, events: Sequence[Event], found: Iterable[Incident]) -> dict[int, Kept]:
    """The folder of each incident that has one, by the incident's number in the journal."""
    told = run_ids(events)
    candidates = [incident for incident in found if incident.kind not in WITHOUT_EVIDENCE]
    by_number: dict[int, Kept] = {}
    for kept in all_incidents(run_dir):
        same = [
            each for each in candidates if (kept.run_id, kept.cycle) in told.get((each.run, each.cycle), ())
        ]
        if same:
            nearest = min(same, key=lambda each: abs(each.t - kept.at))
            by_number[nearest.number] = kept
    return by_number


def run_ids(events: Sequence[Event]) -> dict[tuple[int, int], set[tuple[str, int]]]:
    """The run ids, with the cycle, of each cycle of each life of the job: those that its launchers had told before."""
    latest: dict[str, str] = {}
    of_event: dict[int, str] = {}
    for event in events:
        if event.kind == "run_start":
            latest[event.teller] = str(event.get("run_id") or "")
        of_event[id(event)] = latest.get(event.teller, "")
    found: dict[tuple[int, int], set[tuple[str, int]]] = {}
    for cycle in cycles(events):
        ids = {of_event[id(event)] for event in cycle.of_kind("cycle_start", "rank_start")}
        ids = ids or {of_event[id(event)] for event in cycle.events}
        found[cycle.run, cycle.number] = {(run_id, cycle.number) for run_id in ids}
    return found


def record_of(kept: Kept) -> Record | None:
    """Everything that is known; None where nobody has told anything yet. Raises `HoldfastError`."""
    problem = None
    try:
        return read_record(read_file(kept.path, RECORD), os.path.join(kept.path, RECORD))
    except FileNotFoundError:
        pass
    except ReportUnreadable as error:
        problem = error
    nodes = read_fragments(kept.path)
    if not nodes:
        if problem:
            raise problem
        return None
    from ..rules import judge

    case = Case(tuple(nodes))
    return Record(kept.number, kept.run_id, kept.cycle, kept.at, judge(case), case)


def report_text(kept: Kept) -> str | None:
    """report.txt, or the same made anew where it is missing; None where nobody has told anything yet."""
    with suppress(FileNotFoundError):
        lines = read_file(kept.path, REPORT).decode(errors="backslashreplace").splitlines()
        return "".join(f"{escaped(line)}\n" for line in lines)
    record = record_of(kept)
    if record is None:
        return None
    lines = report_lines(record.case, record.verdict, number=kept.number, folder=kept.path)
    return "".join(f"{line}\n" for line in lines)
