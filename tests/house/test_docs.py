"""The documentation names only what there is: links, options, kinds of events, exit codes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from holdfast.health import cards, gpus, host, storage
from scripts import reference
from scripts.journal_kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SUPERVISION = ROOT / "src" / "holdfast" / "fault_tolerance"

# Options of other programs that appear in examples.
FOREIGN = {
    "--lr", "--step-seconds", "--log", "--signal", "--ntasks-per-node", "--no-deps", "--wheel-dir", "--dir", "--strict",
    "--cpus-per-task", "--gpus-per-node", "--kill-on-bad-exit", "--wait", "--no-requeue",
    # of pip
    "--ignore-installed",
    # of `make gpu` and `make simulate`
    "--list", "--out", "--wheels", "--seeds", "--nodes", "--minutes",
    # of Slurm, pip and Megatron-LM
    "--partition", "--force-reinstall", "--target", "--async-save", "--async-strategy",
    # of docker
    "--shm-size", "--cap-add",
    # of TorchX and hostname
    "--scheduler", "--script", "--max-retries", "--launcher-options", "--ip-address",
}  # fmt: skip


@cache
def known_options() -> set[str]:
    """Every option of ft_launcher, hyphenated, of the commands of holdfast, and of the corpus of faults."""
    from torch.distributed.run import get_args_parser

    from benchmarks.faults.__main__ import parser as parser_of_faults
    from holdfast.cli.main import _parser
    from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS

    torch_options = {option for action in get_args_parser()._actions for option in action.option_strings}
    ours = {f"--{name}" for option in OPTIONS for name in option.names}
    ours |= {*_options(_parser()), *_options(parser_of_faults())}
    return {option.replace("_", "-") for option in torch_options} | ours


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        for command in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from _options(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_exist(page: Path) -> None:
    # `--rdzv-…` and `--ft-` stand for several.
    found = re.findall(r"(?<![\w-])(--[a-z][a-z0-9_-]*[a-z0-9])([-_]?…?)", page.read_text())
    named = {option.replace("_", "-") for option, rest in found if not rest}
    unknown = named - FOREIGN - known_options()
    # A misspelt option is shown on purpose where the error for it is.
    assert {option for option in unknown if "hartbeat" not in option} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


def test_every_recorded_kind_of_event_has_a_meaning() -> None:
    """Kinds that the node controller records are in a `Record` of its own."""
    texts = [path.read_text() for path in SUPERVISION.rglob("*.py")]
    calls = r'\b(?:record|defer|journal)\(\s*"(\w+)"|"event": "(\w+)"'
    recorded = {first or second for text in texts for first, second in re.findall(calls, text)}
    assert {"run_start", "rank_exit", "verdict"} <= recorded  # the search finds something
    assert recorded - KINDS.keys() == set()


def test_every_check_of_a_node_has_a_meaning() -> None:
    page = (reference.FOLDER.parent / "health.md").read_text(encoding="utf-8")
    checks = {gpus.CHECK, cards.CHECK, storage.CHECK, host.CHECK, host.CLOCK, "command"}
    assert checks == set(re.findall(r"^\| `([\w ]+)` \|", page, re.MULTILINE))


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_page_is_current(name: str) -> None:
    """`make reference` writes it."""
    assert (reference.FOLDER / f"{name}.md").read_text(encoding="utf-8") == reference.page(name)


def test_moving_over_lists_differences_exit_codes_first() -> None:
    from holdfast.fault_tolerance.launcher import exit_codes as exits

    page = (ROOT / "docs" / "moving-over.md").read_text()
    differences = page.partition("## What behaves differently\n")[2]
    assert re.findall(r"^### (.*)", differences, re.MULTILINE)[0] == "Exit codes of `ft_launcher`"
    codes = differences.partition("### Settings")[0]
    expected = (137, 139, exits.FAILED, exits.USAGE, exits.DO_NOT_REQUEUE, exits.INTERRUPTED)
    assert [code for code in expected if not re.search(rf"\b{code}\b", codes)] == []
    assert "128 + n" in codes and "min-healthy" in differences and "YAML is strict" in differences


def test_diagrams_are_the_output_of_their_script(tmp_path: Path) -> None:
    from scripts.diagrams import main

    main(tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {name: (ROOT / "docs" / name).read_text() for name in drawn}


def test_pages_and_pictures_stay_small() -> None:
    """Pages of docs/reference/ are generated."""
    most = {"README.md": 150, "CONTRIBUTING.md": 100}
    lengths = {page: len(page.read_text().splitlines()) for page in PAGES if page.parent.name != "reference"}
    assert {page: length for page, length in lengths.items() if length > most.get(page.name, 200)} == {}
    pictures = {path: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert {path: size for path, size in pictures.items() if size >= 150_000} == {}
