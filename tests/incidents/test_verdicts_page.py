"""The example in the documentation of verdicts runs on the evidence of an incident."""

import re
from pathlib import Path

import pytest

from tests.incidents.cases_for_reports import FIXTURES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verdicts.md"


def test_example_of_the_page_prints_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("incidents/0001")
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text((FIXTURES / "dead_storage.json").read_text())
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(example, {})
    first, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ \w+ (high|medium|low)", first) and len(rest) > 2
