"""The reference has every part of the evidence, and the page on reports today's examples."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from enum import Enum

import pytest

from holdfast.incidents import evidence
from scripts.reference import TITLES
from tests.incidents.report_examples import DOCS, EXAMPLES, PAGES, with_examples


def test_every_part_of_the_evidence_has_a_table() -> None:
    parts = {
        kind
        for kind in vars(evidence).values()
        if isinstance(kind, type) and (is_dataclass(kind) or (issubclass(kind, Enum) and len(kind) > 0))
    }
    assert parts - {evidence.Case} <= TITLES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_documentation_examples_are_current(name: str) -> None:
    """`python -m tests.incidents.report_examples` writes them."""
    text = (DOCS / name).read_text()
    assert text == with_examples(text)


def test_documentation_shows_every_example_once() -> None:
    text = "".join((DOCS / name).read_text() for name in PAGES)
    assert sorted(re.findall(r"<!-- example: (\w+) -->", text)) == sorted(EXAMPLES)
