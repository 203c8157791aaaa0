"""The workflow for GitHub and .ci/run run the same make targets, which find their tests; GitHub can read its files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REGRESSIONS, regressions
from tests.versions.matrix import TESTS

ROOT = Path(__file__).resolve().parents[2]
GITHUB, RUN = ROOT / ".github", ROOT / ".ci" / "run"
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]


def read(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=yaml.BaseLoader)  # `on` stays a string


def workflow_job() -> dict[str, Any]:
    job: dict[str, Any] = read(GITHUB / "workflows" / "ci.yml")["jobs"]["make"]
    return job


def test_workflow_has_the_targets_of_ci_run() -> None:
    steps = re.findall(r"^step (.+)$", RUN.read_text(), re.MULTILINE)
    targets = workflow_job()["strategy"]["matrix"]["target"]
    assert sorted(map(shlex.split, targets)) == sorted(map(shlex.split, steps))


def test_workflow_requires_what_ci_run_requires() -> None:
    required = re.findall(r"^export (HOLDFAST_REQUIRE_\w+)=1$", RUN.read_text(), re.MULTILINE)
    assert required
    assert {name for name in workflow_job()["env"] if name.startswith("HOLDFAST_")} == set(required)


def test_workflow_steps_are_actions_or_commands_that_exist() -> None:
    workflow = read(GITHUB / "workflows" / "ci.yml")
    assert set(workflow) <= {"name", "on", "permissions", "concurrency", "env", "jobs"}
    for step in workflow_job()["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "actions/checkout@v4"))
        command = step.get("run", "make").split()[0]
        assert command == "make" or (ROOT / command).is_file()


@pytest.mark.parametrize("test", TESTS)
def test_matrix_names_tests_that_exist(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}" in (ROOT / path).read_text()


@pytest.mark.parametrize("test", sorted(regressions()))
def test_rows_of_the_regression_list_name_tests_that_exist(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).is_file()


def test_every_row_of_the_regression_list_names_a_test() -> None:
    rows = re.findall(r"^\| (?!what happens|---)(.*) \|$", REGRESSIONS.read_text(), re.MULTILINE)
    assert rows
    assert [row for row in rows if "`tests/" not in row.rsplit(" | ", 1)[1]] == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_have_what_github_wants(path: Path) -> None:
    form = read(path)
    assert form["name"] and form["description"]
    inputs = [each for each in form["body"] if each["type"] != "markdown"]
    assert inputs and len({each["id"] for each in inputs}) == len(inputs)
    for each in inputs:
        assert each["type"] in {"textarea", "input", "dropdown", "checkboxes"} and each["attributes"]["label"]


def test_pre_commit_runs_what_make_lint_runs() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    tools = re.findall(r"\$\(BIN\)/(?:python )?(\S+(?: format| check)?)", recipe[1])
    hooks = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    for tool in tools:
        assert any(tool in each["entry"] for each in hooks), tool
