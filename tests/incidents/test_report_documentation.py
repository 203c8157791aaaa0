"""The reference has every part of the evidence, and the page on reports today's examples."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path

import pytest

from holdfast.incidents import evidence
from scripts.reference import TITLES
from tests.incidents.cases_for_reports import FIXTURES
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


# -- the example in the documentation of verdicts runs on the evidence of an incident --------------------------


def test_example_of_the_page_prints_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("incidents/0001")
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text((FIXTURES / "dead_storage.json").read_text())
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "verdicts.md").read_text(), re.DOTALL)
    exec(example, {})
    first, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ \w+ (high|medium|low)", first) and len(rest) > 2
