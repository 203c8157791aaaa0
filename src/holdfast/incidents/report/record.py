"""incident.json and a node's fragment: everything that is known of an incident, as text and back. Pure.

What always holds: what is written is strict JSON and pure ASCII; what is read is a whole incident, or one error of one
line. Fields that a newer version has added are left out.

Does not cover: the schema of the evidence; that is `incidents.encoding`, documented in docs/incident-reports.md.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from ...fault_tolerance.errors import HoldfastError
from ..encoding import SCHEMA, decoded, encoded
from ..evidence import Case, NodeEvidence
from ..verdict import Verdict


class ReportUnreadable(HoldfastError):
    """A report cannot be read. The message is one line: which file, what was found, what to do."""


@dataclass(frozen=True, slots=True)
class Record:
    """One incident with everything that is known of it."""

    number: int
    """The folder's: 3 is `incidents/0003`."""
    run_id: str
    cycle: int
    made_at: float
    """Unix seconds."""
    verdict: Verdict
    case: Case


def record_text(record: Record) -> str:
    """incident.json."""
    return _text(
        {
            "schema": SCHEMA,
            "number": record.number,
            "run_id": record.run_id,
            "cycle": record.cycle,
            "made_at": record.made_at,
            "verdict": encoded(record.verdict),
            "nodes": [encoded(node) for node in record.case.nodes],
        }
    )


def read_record(text: str | bytes, where: str) -> Record:
    """The incident in this text; `where` names its file. Raises `ReportUnreadable`."""
    found = _object(text, where)
    try:
        nodes = tuple(decoded(NodeEvidence, node) for node in found["nodes"])
        verdict = decoded(Verdict, found["verdict"])
        number, cycle, made_at = int(found["number"]), int(found["cycle"]), float(found["made_at"])
        return Record(number, str(found["run_id"]), cycle, made_at, verdict, Case(nodes))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise _not_one(where, str(error) or repr(error)) from None


def fragment_text(node: NodeEvidence) -> str:
    """A node's part, for the others."""
    return _text({"schema": SCHEMA, "node": encoded(node)})


def read_fragment(text: str | bytes, where: str) -> NodeEvidence:
    """The node's part in this text. Raises `ReportUnreadable`."""
    found = _object(text, where)
    try:
        return decoded(NodeEvidence, found["node"])
    except (ValueError, TypeError, KeyError) as error:
        raise _not_one(where, str(error) or repr(error)) from None


def _object(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_one(where, f"no JSON ({error})") from None
    if not isinstance(found, dict):
        raise _not_one(where, f"a JSON object is expected, not {type(found).__name__}")
    if found.get("schema") != SCHEMA:
        raise ReportUnreadable(
            f"{where}: its schema is {found.get('schema')!r:.40}, and this version of Holdfast reads {SCHEMA} only. "
            "Read it with the version that wrote it; report.txt beside it needs none."
        )
    return found


def _not_one(where: str, why: str) -> ReportUnreadable:
    line = " ".join(why.split())[:200]
    return ReportUnreadable(f"{where}: it cannot be read as an incident's record: {line}. It may be damaged.")


def _text(value: dict[str, Any]) -> str:
    return json.dumps(_finite(value), allow_nan=False, indent=1) + "\n"


def _finite(value: Any) -> Any:
    """Strict JSON has no NaN and no infinity: a duration that is no number is written as 0, which is "not known"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else 0.0
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
