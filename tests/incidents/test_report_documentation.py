"""The page on reports names every field and every kind that there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from holdfast.incidents import evidence
from holdfast.incidents.verdict import KINDS, Verdict

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "incident-reports.md").read_text()


@pytest.mark.parametrize(
    "kind",
    [
        Verdict,
        *(kind for name, kind in vars(evidence).items() if isinstance(kind, type) and name not in ("Case",)),
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_the_record_is_documented(kind: type) -> None:
    if not hasattr(kind, "__dataclass_fields__"):
        pytest.skip("no part of the record")
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {each.name for each in fields(kind)} - named == set()


def test_every_kind_is_documented() -> None:
    for kind, meaning in KINDS.items():
        assert f"| `{kind}` | {meaning} |" in PAGE
