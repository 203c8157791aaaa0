"""torchrun's options through torch's own parser: the same result as torchrun's, apart from what is documented."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line import torch_options
from holdfast.fault_tolerance.launcher.command_line.option_spellings import scan
from tests.versions.additions import accept_additions

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"


@pytest.fixture(autouse=True)
def _no_torchrun_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in torch_options.os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)


def ours(argv: list[str]) -> dict[str, Any]:
    parser = torch_options.build_parser()
    line = scan(argv, torch_options.vocabulary_of(parser))
    found = vars(torch_options.parse_torch(parser, line.torch))
    return {**found, "training_script": line.script, "training_script_args": line.script_args}


NOT_IN_EACH = {
    "numa-binding",  # since 2.9
    "duplicate-stdout-filters", "duplicate-stderr-filters", "signals-to-handle", "virtual-local-rank",  # since 2.10
    "shutdown-timeout",  # since 2.12
    "log-line-prefix-template", "print-completion",  # since 2.15
}  # fmt: skip


def test_known_options_are_those_of_the_installed_torch() -> None:
    known, real = torch_options.known_vocabulary(), torch_options.vocabulary_of(get_args_parser())
    added = accept_additions("options of torchrun", set(real.torch) - set(known.torch))
    assert set(known.torch) - set(real.torch) <= NOT_IN_EACH
    assert {
        name: option for name, option in real.torch.items() if name not in added
    }.items() <= known.torch.items()
    assert known.letters == real.letters


def test_option_of_a_newer_torch_is_named_as_such() -> None:
    """An older torch is stood in for by torchrun's parser without one of its options."""
    parser = get_args_parser()
    parser._actions = [action for action in parser._actions if action.dest != "local_addr"]
    with pytest.raises(ConfigError, match=r"^--local_addr needs a newer torch than the installed one$"):
        scan(["--local_addr=x", "x.py"], torch_options.vocabulary_of(parser))
    (warning,) = torch_options.unknown_variables(parser, {"PET_LOCAL_ADDR": "x"})
    assert warning.startswith("environment variable PET_LOCAL_ADDR has no effect: it needs a newer torch")


def test_torchs_options_have_one_value_or_none() -> None:
    """What the scan relies on; a torch with another kind of option must be looked at."""
    actions = [action for action in get_args_parser()._actions if action.option_strings]
    assert {action.nargs for action in actions} == {None, 0}


@pytest.mark.parametrize(
    "argv",
    [
        ["train.py"],
        [
            "--nnodes=1:4",
            "--nproc-per-node",
            "gpu",
            "--max-restarts=3",
            "--rdzv_backend=c10d",
            "train.py",
            "--lr",
            "1",
        ],
        ["--standalone", "--nproc_per_node=2", "-m", "pkg.train", "a", "--", "b"],
        ["-r3", "-t", "0:3", "--log-dir", "logs", "--local-ranks-filter=0", "--no-python", "run.sh"],
        ["--monitor-interval", "0.5", "--start-method=fork", "--role", "trainer", "--run-path", "/x.py"],
        ["--node-rank=1", "--master-addr=host", "--master-port=1234", "--nnodes=2", "x.py"],
        ["--duplicate-stdout-filters=a,b", "--rdzv-conf", "timeout=5", "--shutdown-timeout", "7", "x.py"],
        ["--", "x.py", "--nnodes", "3"],
    ],
)
def test_the_same_namespace_as_torchrun(argv: list[str]) -> None:
    theirs = vars(get_args_parser().parse_args(argv))
    assert ours(argv) == {**theirs, "signals_to_handle": SIGNALS}


def test_torchs_variables_apply_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "1:2")
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    monkeypatch.setenv("PET_STANDALONE", "1")
    monkeypatch.setenv("PET_SIGNALS_TO_HANDLE", "SIGTERM")
    found = ours(["--max-restarts=2", "x.py"])
    assert (found["nnodes"], found["max_restarts"], found["standalone"]) == ("1:2", 2, True)
    assert found["signals_to_handle"] == "SIGTERM"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--max-restarts", "many"], "--max-restarts: invalid int value: 'many'"),
        (["--master_port", "x"], "--master-port: invalid int value: 'x'"),
        (["--start-method", "magic"], "--start-method: invalid choice: 'magic'"),
        (["--numa-binding", "magic"], "--numa-binding: invalid choice: 'magic'"),
        (["--standalone=1"], "--standalone: ignored explicit argument '1'"),
    ],
)
def test_a_wrong_value_is_one_line(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ours([*argv, "x.py"])
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PET_MAX_RESTARTS", "many", "PET_MAX_RESTARTS: invalid int value: 'many'"),
        ("PET_START_METHOD", "magic", "PET_START_METHOD: 'magic' is not allowed: give one of spawn, fork"),
        ("PET_STANDALONE", "yes", "PET_STANDALONE: 'yes' is not allowed: give 0 or 1"),
        ("PET_NO_PYTHON", "", "PET_NO_PYTHON: '' is not allowed: give 0 or 1"),
    ],
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        ours(["x.py"])
    assert str(caught.value).startswith(said)


def test_a_wrong_variable_that_a_flag_overrides_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_ROLE", "x")
    assert torch_options.source_of("role", ["--role=y"]) == "--role"
    assert torch_options.source_of("role", []) == "PET_ROLE"
    assert torch_options.source_of("nnodes", []) == "--nnodes"


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("0", False), ("2", True), ("yes", False), (None, False)]
)
def test_a_switch_in_the_environment(value: str | None, on: bool) -> None:
    environ = {} if value is None else {"PET_RUN_PATH": value}
    assert torch_options.environment_switch("run_path", environ) is on


def test_the_parser_is_torchs_own() -> None:
    parser = torch_options.build_parser()
    assert isinstance(parser, argparse.ArgumentParser)
    theirs = {action.dest: type(action) for action in get_args_parser()._actions}
    assert {action.dest: type(action) for action in parser._actions} == theirs
