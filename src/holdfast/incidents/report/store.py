"""The incidents of a job on disk: `incidents/0001` and so on in its run directory, shared by the job's nodes.

The file `incident` of a directory has its owner: run id, cycle, and when it was allocated. What always holds: the
nodes of one cycle get one directory, and no directory has two owners: it gets its number by a rename that fails if
the number is taken. Directories are 0700 and files 0600. A file is whole or absent, and strict JSON in pure ASCII. A
link, a device or a file of another user in its place is refused: neither followed nor waited for.
Does not cover: power failures (nothing is synced), and filesystems that do not answer, so callers use threads. A job
whose launchers' clocks differ by more than `CLOCKS` seconds and that uses a run directory and a run id again: its
nodes may get a directory each.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from holdfast.private_file import write_file
from holdfast.visible import escaped

from ...fault_tolerance.errors import HoldfastError
from ..evidence import Case, NodeEvidence, TriggerKind
from ..rules import judge
from ..verdict import Judgement, Verdict
from ..wire import SCHEMA, decoded, encoded, fragment, node_of
from .text import report_lines

FOLDER = "incidents"
KEY, REPORT, RECORD = "incident", "report.txt", "incident.json"
CLOCKS = 5.0
"""Seconds by which the clocks of a job's nodes may differ when a run id is used again."""
LARGEST = 256 << 20
"""Bytes of one file that are read; a record of 16,384 ranks has less than half of that."""
_TRIES = 1000


class IncidentError(HoldfastError):
    """A stored incident cannot be used. The message is one line: which file, why, what to do."""


# -- files -----------------------------------------------------------------------------------------------------


def read_file(folder: str, name: str) -> bytes:
    """A file of an incident. Raises `OSError`, and `IncidentError` for a file of another origin."""
    path = os.path.join(folder, name)
    # Not blocking: a planted pipe has no other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if problem := _problem(os.fstat(descriptor), os.lstat(folder).st_uid):
            raise IncidentError(f"{path} {problem}. Remove it.")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST)
    finally:
        os.close(descriptor)


def _problem(found: os.stat_result, owner: int) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_uid not in (os.geteuid(), owner):
        return f"belongs to user {found.st_uid}, who does not own its directory"
    return f"has {found.st_size >> 20} MiB, more than any report" if found.st_size > LARGEST else ""


# -- records ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """One incident with all evidence: incident.json."""

    number: int
    """The directory's: 3 is `incidents/0003`."""
    run_id: str
    cycle: int
    made_at: float
    """Unix seconds."""
    judgement: Judgement
    case: Case


def record_text(record: Record) -> str:
    """incident.json."""
    facts = {
        "number": record.number,
        "run_id": record.run_id,
        "cycle": record.cycle,
        "made_at": record.made_at,
    }
    nodes = [encoded(node) for node in record.case.nodes]
    return _text({"schema": SCHEMA, **facts, **encoded(record.judgement), "nodes": nodes})


def read_record(text: str | bytes, where: str) -> Record:
    """The incident in this text; `where` names its file. Raises `IncidentError`.

    A record of schema 1 has a verdict without activities: these are derived from its evidence.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(where, f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise _unreadable(where, f"a JSON object is expected, not {type(found).__name__}")
    if found.get("schema") not in (1, SCHEMA):
        raise IncidentError(
            f"{where}: its schema is {found.get('schema')!r:.40}; this version of Holdfast reads 1 and {SCHEMA}. "
            "Read it with the version that wrote it, or read report.txt in the same directory."
        )
    try:
        nodes = [node_of({"schema": found.get("schema"), "node": node}) for node in found["nodes"]]
        case = Case(tuple(nodes))
        if "activities" in found:
            judgement = decoded(Judgement, {name: found[name] for name in ("verdict", "activities", "edges")})
        else:
            today = judge(case)
            judgement = Judgement(decoded(Verdict, found["verdict"]), today.activities, today.edges)
        number, cycle, made_at = int(found["number"]), int(found["cycle"]), float(found["made_at"])
        return Record(number, str(found["run_id"]), cycle, made_at, judgement, case)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise _unreadable(where, str(error) or repr(error)) from None


def _unreadable(where: str, why: str) -> IncidentError:
    line = " ".join(why.split())[:200]
    return IncidentError(f"{where}: it is not the record of an incident: {line}. It may be damaged.")


def _text(value: dict[str, Any]) -> str:
    return json.dumps(_finite(value), allow_nan=False, indent=1) + "\n"


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity: such a duration is written as 0, which means "not known"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else 0.0
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


# -- directories -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredIncident:
    """The directory of one incident."""

    path: str
    number: int
    run_id: str
    cycle: int
    at: float
    """When it was allocated, unix seconds."""

    def is_of(self, run_id: str, cycle: int, since: float) -> bool:
        """Whether it is of this cycle, which began at `since` (unix seconds)."""
        return self.run_id == run_id and self.cycle == cycle and self.at >= since - CLOCKS

    def record(self) -> Record | None:
        """incident.json, else what the fragments of the nodes give; None where there is neither.

        Raises:
            HoldfastError: The record cannot be read, and there are no fragments.
        """
        problem = None
        try:
            return read_record(read_file(self.path, RECORD), os.path.join(self.path, RECORD))
        except FileNotFoundError:
            pass
        except IncidentError as error:
            problem = error
        if nodes := read_fragments(self.path):
            case = Case(tuple(nodes))
            return Record(self.number, self.run_id, self.cycle, self.at, judge(case), case)
        if problem:
            raise problem
        return None

    def report(self) -> str | None:
        """report.txt, else the same made from the record; None where there is no evidence yet."""
        with suppress(FileNotFoundError):
            lines = read_file(self.path, REPORT).decode(errors="backslashreplace").splitlines()
            return "".join(f"{escaped(line)}\n" for line in lines)
        if (record := self.record()) is None:
            return None
        lines = report_lines(record.case, record.judgement, number=self.number, folder=self.path)
        return "".join(f"{line}\n" for line in lines)


def allocate_incident_dir(run_dir: str, run_id: str, cycle: int, *, since: float = 0.0) -> str:
    """The directory of this cycle's incident, made by the first caller. Raises `IncidentError` or `OSError`.

    Args:
        since: When the cycle began, unix seconds. An older directory is of an earlier job with the same run id.
    """
    # One listing shows both whether the directory exists and which number is next. A directory that is not in it yet
    # can only have that number, and then the rename fails. A network filesystem may list what is old: so the directory
    # in the way is read by its path, and its number is not tried again.
    parent, last = _parent(run_dir), 0
    made = os.path.join(parent, f".new-{secrets.token_hex(8)}")
    try:
        for _ in range(_TRIES):
            numbers = sorted({*_numbers(parent), *([last] if last else [])})
            stored = [open_incident(os.path.join(parent, f"{number:04d}")) for number in numbers]
            if same := [each.path for each in stored if each and each.is_of(run_id, cycle, since)]:
                return same[-1]
            if not last:
                os.mkdir(made, 0o700)
                owner = {"run_id": run_id, "cycle": cycle, "at": time.time()}
                write_file(made, KEY, json.dumps(owner) + "\n")
            last = 1 + max(numbers, default=0)
            path = os.path.join(parent, f"{last:04d}")
            with suppress(OSError):  # taken: a rename onto a directory with a file in it fails
                os.rename(made, path)
                return path
            if not os.path.lexists(path):
                raise IncidentError(
                    f"{path} cannot be made. Is {parent} writable, and its filesystem not full?"
                )
        raise IncidentError(f"{parent}: no free number after {last:04d}. Remove old incidents.")
    finally:
        shutil.rmtree(made, ignore_errors=True)


def incident_in(run_dir: str, name: str) -> StoredIncident | None:
    """The incident of a run directory in the directory of this name; None where there is none."""
    parent = os.path.join(run_dir, FOLDER)
    return None if os.path.islink(parent) else open_incident(os.path.join(parent, name))


def open_incident(path: str) -> StoredIncident | None:
    """The incident in this directory, `…/incidents/0003`; None for any other directory."""
    path = os.path.abspath(path)
    name = os.path.basename(path)
    try:
        number = int(name) if re.fullmatch(r"[0-9]{4,8}", name) else 0
        if not number or not stat.S_ISDIR(os.lstat(path).st_mode):
            return None
        key = json.loads(read_file(path, KEY))
        return StoredIncident(path, number, str(key["run_id"]), int(key["cycle"]), float(key["at"]))
    except (OSError, ValueError, KeyError, TypeError, IncidentError, RecursionError):
        return None


def write_fragment(path: str, node: NodeEvidence) -> None:
    """A node's part, already redacted. Raises `OSError`."""
    # Two launchers on one host may have one node name; in one cycle their node ranks differ.
    name = re.sub(r"[^A-Za-z0-9._-]", "_", node.node)[:100]
    write_file(path, f"fragment-{name}-{node.node_rank}.json", _text(fragment(node)))


def read_fragments(path: str) -> list[NodeEvidence]:
    """The parts of the nodes, by rank of the node; one that cannot be read is left out."""
    found = []
    with suppress(OSError):
        for name in sorted(os.listdir(path)):
            if name.startswith("fragment-") and name.endswith(".json"):
                with suppress(OSError, IncidentError, ValueError, RecursionError):
                    found.append(node_of(json.loads(read_file(path, name))))
    return sorted(found, key=lambda node: (node.node_rank, node.node))


def write_report(path: str, case: Case, judgement: Judgement) -> None:
    """report.txt and incident.json of redacted evidence. Raises `OSError`."""
    node = next(iter(case.nodes), NodeEvidence("", TriggerKind.UNKNOWN))
    stored = open_incident(path) or StoredIncident(path, 0, node.run_id, node.cycle, 0.0)
    record = Record(stored.number, stored.run_id, stored.cycle, time.time(), judgement, case)
    write_file(path, RECORD, record_text(record))
    lines = report_lines(case, judgement, number=stored.number, folder=path)
    write_file(path, REPORT, "\n".join([*lines, ""]))


def _parent(run_dir: str) -> str:
    parent = os.path.join(run_dir, FOLDER)
    with suppress(FileExistsError):
        os.mkdir(parent, 0o700)
    found = os.lstat(parent)
    problem = None
    if not stat.S_ISDIR(found.st_mode):
        problem = "is a link" if stat.S_ISLNK(found.st_mode) else "is not a directory"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & 0o022:
        problem = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    if problem:
        raise IncidentError(f"{parent} {problem}: no report is stored there. Remove it.")
    return parent


def _numbers(parent: str) -> list[int]:
    """The numbers that are taken, also by foreign files."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(parent) if re.fullmatch(r"[0-9]{4,8}", name)]
    return []
