"""incident.json and the nodes' fragments: written, read, refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.incidents.evidence import Case
from holdfast.incidents.report.record import (
    Record,
    ReportUnreadable,
    fragment_text,
    read_fragment,
    read_record,
    record_text,
)
from tests.incidents.cases_for_reports import ALL, two_nodes


@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_read(name: str) -> None:
    case, verdict = ALL[name]()
    record = Record(3, "run-1", 2, 1_800_000_000.5, verdict, case)
    assert read_record(record_text(record), "x") == record
    assert [read_fragment(fragment_text(node), "x") for node in case.nodes] == list(case.nodes)


def test_what_a_newer_version_adds_is_left_out() -> None:
    case, verdict = two_nodes()
    record = Record(1, "run-1", 0, 1.0, verdict, case)
    value = json.loads(record_text(record))
    assert value["schema"] == 1
    value["more"] = value["verdict"]["more"] = value["nodes"][0]["ranks"][0]["board"]["more"] = {"a": 1}
    assert read_record(json.dumps(value), "x") == record


def test_durations_that_are_no_numbers_are_strict_json() -> None:
    case, verdict = two_nodes()
    odd = Case((replace(case.nodes[0], took=float("nan"), at=float("inf")),))
    text = record_text(Record(1, "run-1", 0, 1.0, verdict, odd))
    assert "NaN" not in text and "Infinity" not in text
    assert read_record(text, "x").case.nodes[0].took == 0.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "a JSON object is expected, not list"),
        ('{"schema": 2}', "its schema is 2, and this version of Holdfast reads 1 only"),
        ('{"schema": 1}', "nodes"),
        ('{"schema": 1, "nodes": [{}], "verdict": {}}', "no NodeEvidence"),
        ('{"schema": 1, "nodes": [], "verdict": {"kind": "odd", "sentence": "x"}}', "is no verdict"),
        ('{"schema": 1, "nodes": 3}', "cannot be read as an incident's record"),
    ],
)
def test_what_is_none_is_one_line(text: str, says: str) -> None:
    with pytest.raises(ReportUnreadable) as error:
        read_record(text, "incidents/0001/incident.json")
    (line,) = str(error.value).splitlines()
    assert line.startswith("incidents/0001/incident.json: ")
    assert says in line
