"""The folders of a job's incidents, `incidents/0001` and so on in its run directory, shared by the job's nodes.

Whose incident a folder holds says the file `incident` in it: run id, cycle, and when it was claimed. What always holds:
the nodes of one cycle get one folder, whoever comes first, and no folder has two owners: a folder gets its number
by a rename that fails where the number is taken. Folders are 0700, files 0600; each file is whole or not there. What
another user or another program has put in the way (a link, a device, a folder of somebody else) is refused.

Does not cover: filesystems that do not answer; callers make these calls in threads. A folder of a job whose launchers
disagree about the time by more than `SLACK` seconds, and that uses a run directory and a run id for a second time: its
nodes may get a folder each.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass

from ..evidence import Case, NodeEvidence
from ..verdict import Verdict
from .files import FolderError, read_file, write_file
from .record import Record, ReportUnreadable, fragment_text, read_fragment, record_text
from .text import report_lines

FOLDER = "incidents"
KEY = "incident"
REPORT = "report.txt"
RECORD = "incident.json"

SLACK = 5.0
"""Seconds by which the clocks of a job's nodes may differ when it is asked whether a folder is of an earlier life."""

_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """One incident's folder."""

    path: str
    number: int
    run_id: str
    cycle: int
    at: float
    """When it was claimed, unix seconds."""


def claim(run_dir: str, run_id: str, cycle: int, *, since: float = 0.0) -> str:
    """The folder of this cycle's incident, made by whoever comes first. Raises `FolderError` or `OSError`.

    `since`: when the cycle began, unix seconds; a folder from before is of an earlier life of a job that uses its run
    id again, and another one is made.
    """
    parent = _parent(run_dir)
    if found := find(run_dir, run_id, cycle, since=since):
        return found
    made = os.path.join(parent, f".new-{secrets.token_hex(8)}")
    os.mkdir(made, 0o700)
    try:
        write_file(made, KEY, json.dumps({"run_id": run_id, "cycle": cycle, "at": time.time()}) + "\n")
        return _renamed(made, parent, run_id, cycle, since)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _renamed(made: str, parent: str, run_id: str, cycle: int, since: float) -> str:
    """The folder under the next number, or that of whoever was quicker.

    One listing says both whether the folder is there and which number is next: one that it does not show yet can only
    have that number, and then the rename fails. A network filesystem may go on listing what is old; so the folder that
    was in the way is looked at by itself, and its number is not tried again.
    """
    last = 0
    for _ in range(_TRIES):
        numbers = _numbers(parent)
        paths = [os.path.join(parent, f"{number:04d}") for number in {*numbers, *([last] if last else [])}]
        for kept in filter(None, map(_kept, paths)):
            if _is_of(kept, run_id, cycle, since):
                shutil.rmtree(made, ignore_errors=True)
                return kept.path
        last = 1 + max([last, *numbers])
        path = os.path.join(parent, f"{last:04d}")
        with suppress(OSError):  # taken, as a rename onto a folder with something in it tells
            os.rename(made, path)
            return path
        if not os.path.lexists(path):
            raise FolderError(f"{path} cannot be made. Is {parent} writable, and its filesystem not full?")
    raise FolderError(f"{parent}: no free number after {last:04d}. Remove what is in the way.")


def find(run_dir: str, run_id: str, cycle: int, *, since: float = 0.0) -> str | None:
    """The newest folder of this cycle, if there is one."""
    found = [kept for kept in all_incidents(run_dir) if _is_of(kept, run_id, cycle, since)]
    return found[-1].path if found else None


def all_incidents(run_dir: str) -> list[Kept]:
    """Every incident's folder in a run directory, by number; what is none is left out. Never raises `OSError`."""
    return _listed(os.path.join(run_dir, FOLDER))


def kept_at(path: str) -> Kept | None:
    """The incident in this folder itself, `…/incidents/0003`; None where it is no such folder."""
    return _kept(os.path.abspath(path))


def write_fragment(path: str, node: str, evidence: NodeEvidence) -> None:
    """A node's part, already redacted. Raises `OSError`."""
    write_file(path, _fragment_name(node, evidence.node_rank), fragment_text(evidence))


def read_fragments(path: str) -> list[NodeEvidence]:
    """The parts of the nodes that have told theirs, by rank of the node; one that cannot be read is left out."""
    found = []
    with suppress(OSError):
        for name in sorted(os.listdir(path)):
            if name.startswith("fragment-") and name.endswith(".json"):
                with suppress(OSError, ReportUnreadable, FolderError):
                    found.append(read_fragment(read_file(path, name), os.path.join(path, name)))
    return sorted(found, key=lambda node: (node.node_rank, node.node))


def write_report(path: str, case: Case, verdict: Verdict) -> None:
    """report.txt and incident.json of redacted evidence. Raises `OSError`."""
    kept = _kept(path)
    number = kept.number if kept else 0
    run_id = kept.run_id if kept else next((node.run_id for node in case.nodes), "")
    cycle = kept.cycle if kept else next((node.cycle for node in case.nodes), 0)
    write_file(path, RECORD, record_text(Record(number, run_id, cycle, time.time(), verdict, case)))
    write_file(path, REPORT, "\n".join([*report_lines(case, verdict, number=number, folder=path), ""]))


def _parent(run_dir: str) -> str:
    parent = os.path.join(run_dir, FOLDER)
    with suppress(FileExistsError):
        os.mkdir(parent, 0o700)
    found = os.lstat(parent)
    problem = None
    if not stat.S_ISDIR(found.st_mode):
        problem = "is a link" if stat.S_ISLNK(found.st_mode) else "is no folder"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & 0o022:
        problem = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    if problem:
        raise FolderError(f"{parent} {problem}: no report is kept there. Remove it.")
    return parent


def _numbers(parent: str) -> list[int]:
    """The numbers that are taken, also by what is no incident."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(parent) if re.fullmatch(r"[0-9]{4,8}", name)]
    return []


def _listed(parent: str) -> list[Kept]:
    if os.path.islink(parent):
        return []
    paths = (os.path.join(parent, f"{number:04d}") for number in sorted(_numbers(parent)))
    return [kept for path in paths if (kept := _kept(path))]


def _kept(path: str) -> Kept | None:
    """What a folder's key says; None where it has none, or is not ours."""
    name = os.path.basename(path)
    try:
        number = int(name) if re.fullmatch(r"[0-9]{4,8}", name) else 0
        if not number or not stat.S_ISDIR(os.lstat(path).st_mode):
            return None
        key = json.loads(read_file(path, KEY))
        return Kept(path, number, str(key["run_id"]), int(key["cycle"]), float(key["at"]))
    except (OSError, ValueError, KeyError, TypeError, FolderError, RecursionError):
        return None


def _is_of(kept: Kept, run_id: str, cycle: int, since: float) -> bool:
    return kept.run_id == run_id and kept.cycle == cycle and kept.at >= since - SLACK


def _fragment_name(node: str, node_rank: int) -> str:
    """Two launchers on one host may have one node name; in one cycle their node ranks differ."""
    return f"fragment-{re.sub(r'[^A-Za-z0-9._-]', '_', node)[:100]}-{node_rank}.json"
