"""`launcher.get_args_parser`: an argparse parser for programs that build a config from a command line of their own."""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser as torchs_parser

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher import get_args_parser
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS

VALUES = {
    "workload_check_interval": ("0.5", 0.5),
    "initial_rank_heartbeat_timeout": ("None", None),
    "rank_heartbeat_timeout": ("60", 60.0),
    "rank_section_timeouts": ("setup:600,step:null", {"setup": 600.0, "step": None}),
    "rank_out_of_section_timeout": ("30", 30.0),
    "node_health_check_interval": ("7", 7.0),
    "safety_factor": ("3", 3.0),
    "rank_termination_signal": ("SIGTERM", signal.SIGTERM),
    "log_level": ("DBG", logging.DEBUG),
    "restart_check_interval": ("9", 9.0),
    "enable_nic_monitor": ("true", True),
    "pci_topo_file": ("topo.xml", "topo.xml"),
    "link_down_path_template": ("/sys/{dev_name}", "/sys/{dev_name}"),
}
SPELLINGS = [
    "--ft-{dashed}",
    "--ft-{name}",
    "--ft_{name}",
    "--ft-param-{dashed}",
    "--ft-param-{name}",
    "--ft_param_{name}",
]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PET_FT_CFG_PATH", "FAULT_TOL_CFG_PATH"):
        monkeypatch.delenv(name, raising=False)


def spelled(pattern: str) -> Iterator[str]:
    for name, (text, _) in VALUES.items():
        yield from (pattern.format(name=name, dashed=name.replace("_", "-")), text)


@pytest.mark.parametrize("pattern", SPELLINGS)
def test_from_args_every_spelling_gives_the_settings(pattern: str) -> None:
    args = get_args_parser().parse_args([*spelled(pattern), "train.py", "--ft-of=the script"])
    config = FaultToleranceConfig.from_args(args)
    assert {name: getattr(config, name) for name in VALUES} == {
        name: value for name, (_, value) in VALUES.items()
    }
    assert (args.training_script, args.training_script_args) == ("train.py", ["--ft-of=the script"])


def test_from_args_no_option_gives_the_defaults() -> None:
    assert (
        FaultToleranceConfig.from_args(get_args_parser().parse_args(["train.py"])) == FaultToleranceConfig()
    )


def test_from_args_file_and_option_apply_together(tmp_path: Path) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {safety_factor: 2, rank_heartbeat_timeout: 60}\n")
    for flag in ("--ft-cfg-path", "--ft_cfg_path", "--fault-tol-cfg-path", "--fault_tol_cfg_path"):
        args = get_args_parser().parse_args([flag, str(path), "--ft-safety-factor=3", "x.py"])
        config = FaultToleranceConfig.from_args(args)
        assert (config.safety_factor, config.rank_heartbeat_timeout) == (3.0, 60.0)


@pytest.mark.parametrize(
    "flag", ["--ignore-missing-fault-tol-cfg", "--ft-ignore-missing-cfg", "--ft_ignore_missing_cfg"]
)
def test_from_args_missing_file_is_forgiven_on_request(flag: str, tmp_path: Path) -> None:
    words = [f"--ft-cfg-path={tmp_path / 'none.yaml'}", "x.py"]
    with pytest.raises(ConfigError, match="no such file"):
        FaultToleranceConfig.from_args(get_args_parser().parse_args(words))
    assert (
        FaultToleranceConfig.from_args(get_args_parser().parse_args([flag, *words])) == FaultToleranceConfig()
    )


def test_from_args_wrong_value_names_the_option() -> None:
    args = get_args_parser().parse_args(["--ft-param-rank_heartbeat_timeout=-1", "x.py"])
    with pytest.raises(ConfigError, match="--ft-rank-heartbeat-timeout: '-1' is not allowed"):
        FaultToleranceConfig.from_args(args)


def test_parser_has_every_option_of_the_launcher() -> None:
    parser = get_args_parser()
    assert isinstance(parser, argparse.ArgumentParser)
    options = {option for action in parser._actions for option in action.option_strings}
    torch = {option for action in torchs_parser()._actions for option in action.option_strings}
    assert torch <= options
    ours = {f"--{name}" for option in OPTIONS for name in option.names}
    assert ours | {name.replace("-", "_").replace("__", "--", 1) for name in ours} <= options


def test_parser_launcher_options_are_typed() -> None:
    args = get_args_parser().parse_args(
        ["--term-timeout=60", "--nproc-per-node=8", "--restart_policy", "any-failed", "x.py"]
    )
    assert (args.term_timeout, args.nproc_per_node, args.ft_restart_policy) == (60.0, "8", "any-failed")
    assert (args.workers_stop_timeout, args.ft_warm_start, args.ft_early_detection) == (5.0, "auto", False)
    assert get_args_parser().parse_args(["--ft-early-detection", "x.py"]).ft_early_detection is True


def test_parser_wrong_launcher_option_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        get_args_parser().parse_args(["--ft-restart-policy=min-healthy", "x.py"])
    assert stop.value.code == 2
    assert "min-healthy keeps the other ranks running" in capsys.readouterr().err


def test_parser_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_FT_RANK_HEARTBEAT_TIMEOUT", "61")
    monkeypatch.setenv("PET_TERM_TIMEOUT", "62")
    monkeypatch.setenv("PET_FT_EARLY_DETECTION", "1")
    args = get_args_parser().parse_args(["x.py"])
    assert FaultToleranceConfig.from_args(args).rank_heartbeat_timeout == 61.0
    assert (args.term_timeout, args.ft_early_detection) == (62.0, True)
    monkeypatch.setenv("PET_FT_RANK_HEARTBEAT_TIMEOUT", "long")
    with pytest.raises(ConfigError, match="PET_FT_RANK_HEARTBEAT_TIMEOUT: 'long' is not allowed"):
        get_args_parser()


def test_parser_help_has_one_line_per_option() -> None:
    text = get_args_parser().format_help()
    assert (
        "--ft-rank-heartbeat-timeout SECONDS" in text and "longest time between two heartbeats [2700]" in text
    )
    assert "--ft-param-rank" not in text
