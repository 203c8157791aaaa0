"""Precedence, origins, full checks of every source; the YAML section; and a parser for programs of their own."""

from __future__ import annotations

import argparse
import signal
from itertools import product
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser as torchs_parser

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.fault_tolerance.config_fields import Given
from holdfast.fault_tolerance.config_sources import MissingSection, load, read_section
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher import get_args_parser
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS

FIELD = "rank_heartbeat_timeout"
FLAG = "--ft-rank-heartbeat-timeout"
VARIABLE = "PET_FT_RANK_HEARTBEAT_TIMEOUT"


@pytest.fixture
def yaml_file(tmp_path: Path) -> str:
    path = tmp_path / "ft.yaml"
    path.write_text(f"fault_tolerance:\n  {FIELD}: 20\n  safety_factor: 2\n")
    return str(path)


def test_the_strongest_source_wins_and_is_named(yaml_file: str) -> None:
    for in_yaml, in_env, in_flag in product([False, True], repeat=3):
        flags = {FIELD: Given("40", FLAG)} if in_flag else {}
        environ = {VARIABLE: "30"} if in_env else {}
        found = load(flags, environ, yaml_file if in_yaml else None)
        layers = [
            (True, 2700.0, "default"),
            (in_yaml, 20.0, f"yaml {yaml_file}"),
            (in_env, 30.0, f"env {VARIABLE}"),
            (in_flag, 40.0, FLAG),
        ]
        value, origin = next((value, origin) for here, value, origin in reversed(layers) if here)
        assert (found.config.rank_heartbeat_timeout, found.origins[FIELD]) == (value, origin)
        # The other setting of the file applies, whichever source wins this one.
        assert found.config.safety_factor == (2.0 if in_yaml else 5.0)


def test_a_stronger_source_replaces_limits_and_sections(yaml_file: str) -> None:
    Path(yaml_file).write_text(
        f"fault_tolerance: {{{FIELD}: 20, rank_section_timeouts: {{setup: 600, step: 180}}}}"
    )
    found = load({FIELD: Given("None", FLAG)}, {"PET_FT_RANK_SECTION_TIMEOUTS": "step:60"}, yaml_file)
    assert found.config.rank_heartbeat_timeout is None and found.is_set(FIELD)
    assert found.config.rank_section_timeouts == {"step": 60.0}
    for empty in ("", "  "):
        assert load({}, {VARIABLE: empty}).origins[FIELD] == "default"


def test_a_missing_file() -> None:
    path = "/nowhere/ft.yaml"
    with pytest.raises(ConfigError, match=f"^{path}: no such file$"):
        load({}, {}, path)
    with pytest.raises(ConfigError, match=r"no such file$"):
        load({FIELD: Given("40", FLAG)}, {}, path)
    with pytest.raises(ConfigError, match=r"no such file \(named by FAULT_TOL_CFG_PATH\)$"):
        load({}, {}, path, "FAULT_TOL_CFG_PATH")
    with pytest.raises(MissingSection, match=r"no such file$"):
        read_section(f"{__file__}/below-a-file.yaml")
    assert load({}, {}, path, is_missing_ok=True).warnings == ()


WRONG_LINES = [
    ("rank_hearbeat_timeout: 60", "no setting 'rank_hearbeat_timeout'; did you mean 'rank_heartbeat_timeout'?"),
    ("rank-heartbeat-timeout: 60", "did you mean 'rank_heartbeat_timeout'?"),
    ("rank_heartbeat_timeout: .nan", "nan is not allowed"),
    ("workload_check_interval: null", "None is not allowed"),
    ("rank_section_timeouts: {step: soon}", "section 'step' has 'soon'"),
    ("rank_termination_signal: SIGFOO", "'SIGFOO' is not allowed: there is no such signal"),
    ("restart_policy: min-healthy", "use any-failed"),
]  # fmt: skip
"""Which values each setting refuses: test_config.py."""


def test_a_wrong_line_of_yaml_is_an_error_even_when_a_flag_overrides_it(tmp_path: Path) -> None:
    path = tmp_path / "ft.yaml"
    for line, said in WRONG_LINES:
        path.write_text(f"fault_tolerance:\n  {line}\n")
        with pytest.raises(ConfigError) as caught:
            load({FIELD: Given("60", FLAG)}, {}, str(path))
        key = line.partition(":")[0]
        assert str(caught.value).startswith(f"{path}, line 2, {key}: ")
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_long_value_does_not_flood_the_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, {VARIABLE: "x" * 5000})
    assert len(str(caught.value)) < 300


def written(folder: Path, content: str | bytes) -> str:
    path = folder / "ft.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


FILES = [
    "fault_tolerance:\n  safety_factor: 2\n",
    "other: 1\nmodel:\n  deep:\n    fault_tolerance: {safety_factor: 2}\n",
    "callbacks:\n  - name: x\n  - fault_tolerance:\n      safety_factor: 2\n",
    "a: &a {fault_tolerance: {safety_factor: 2}}\nb: *a\n",
    "a: &a\n  self: *a\n  fault_tolerance: {safety_factor: 2}\n",
    "base: &base {safety_factor: 2}\nfault_tolerance:\n  <<: *base\n",
    "features: {fault_tolerance: true}\nfault_tolerance: {safety_factor: 2}\n",
    "other: !some.program {x: 1}\nfault_tolerance: {safety_factor: 2}\n",
    "? [1, 2]\n: x\nfault_tolerance: {safety_factor: 2}\n",
]


def test_the_section_is_found(tmp_path: Path) -> None:
    for content in FILES:
        assert read_section(written(tmp_path, content)).values == {"safety_factor": 2}, content
    assert read_section(written(tmp_path, "fault_tolerance:\n")).values == {}
    published = written(tmp_path, "fault_tolerance: {restart_policy: any-failed, safety_factor: 2}\n")
    assert load({}, {}, published).config.safety_factor == 2.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ": the file is empty; expected a 'fault_tolerance' section"),
        ("model: 1\n", ": no 'fault_tolerance' section"),
        ("fault-tolerance: {}\n", ": no 'fault_tolerance' section; was it meant by 'fault-tolerance'?"),
        ("rank_heartbeat_timeout: 60\n", "; put the settings under 'fault_tolerance:'"),
    ],
)
def test_a_file_without_the_section(tmp_path: Path, content: str, said: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(MissingSection) as caught:
        read_section(path)
    assert str(caught.value).startswith(path) and str(caught.value).endswith(said)


DAMAGED: list[tuple[str | bytes, str]] = [
    ("- fault_tolerance: {safety_factor: 2}\n", "the file is a list"),
    ("just words\n", "the file is a single value"),
    ("fault_tolerance:\n  - 1\n", ", line 2: 'fault_tolerance' is not a section"),
    ("fault_tolerance: on\n", ", line 1: 'fault_tolerance' is not a section"),
    ("a:\n  fault_tolerance: {}\nb:\n  fault_tolerance: {}\n", "more than one 'fault_tolerance' section"),
    ("fault_tolerance:\n  a: 2\n  a: 3\n", ", line 3: 'a' is given twice"),
    ("fault_tolerance:\n  a:\n    step: 1\n    step: 2\n", ", line 4: 'step' is given twice"),
    ("fault_tolerance: {a\n", ", line 2: not valid YAML: "),
    ("a: [\n", ", line 2: not valid YAML: "),
    ("a: 1\n\tb: 2\n", ", line 2: not valid YAML: "),
    ("a: 1\n---\nb: 2\n", ", line 2: not valid YAML: "),
    ("fault_tolerance: {safety_factor: !!int ''}\n", "not valid YAML: "),
    ("fault_tolerance: {safety_factor: !!bool maybe}\n", "not valid YAML: "),
    ("fault_tolerance: {safety_factor: !unknown 1}\n", ", line 1: not valid YAML: "),
    ("fault_tolerance: {safety_factor: 2024-13-45}\n", "not valid YAML: "),
    ("a: " + "[" * 700, "nested too deeply"),
    (b"a: \xff\xfe\x00", "not valid YAML: "),
    (b"\x00", "not valid YAML: "),
]


def test_a_file_that_cannot_be_understood(tmp_path: Path) -> None:
    for content, said in DAMAGED:
        path = written(tmp_path, content)
        with pytest.raises(ConfigError) as caught:
            read_section(path)
        assert str(caught.value).startswith(path) and said in str(caught.value), content
        assert "\n" not in str(caught.value), content


def test_a_file_that_the_system_does_not_give() -> None:
    with pytest.raises(ConfigError, match=r"^/proc/self/mem: cannot be read: Input/output error"):
        read_section("/proc/self/mem")


# -- `launcher.get_args_parser`


VALUES = {
    "initial_rank_heartbeat_timeout": ("None", None),
    "rank_heartbeat_timeout": ("60", 60.0),
    "rank_section_timeouts": ("setup:600,step:null", {"setup": 600.0, "step": None}),
    "rank_termination_signal": ("SIGTERM", signal.SIGTERM),
    "enable_nic_monitor": ("true", True),
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


@pytest.mark.parametrize("pattern", SPELLINGS)
def test_from_args_every_spelling_gives_the_settings(pattern: str) -> None:
    words = []
    for name, (text, _) in VALUES.items():
        words += [pattern.format(name=name, dashed=name.replace("_", "-")), text]
    args = get_args_parser().parse_args([*words, "train.py", "--ft-of=the script"])
    config = FaultToleranceConfig.from_args(args)
    for name, (_, value) in VALUES.items():
        assert getattr(config, name) == value
    assert (args.training_script, args.training_script_args) == ("train.py", ["--ft-of=the script"])


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


def test_parser_has_every_option_of_the_launcher() -> None:
    parser = get_args_parser()
    assert isinstance(parser, argparse.ArgumentParser)
    options = {option for action in parser._actions for option in action.option_strings}
    torch = {option for action in torchs_parser()._actions for option in action.option_strings}
    assert torch <= options
    ours = {f"--{name}" for option in OPTIONS for name in option.names}
    assert ours | {name.replace("-", "_").replace("__", "--", 1) for name in ours} <= options


def test_parser_options_are_typed_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    parser = get_args_parser()
    typed = ["--term-timeout=60", "--nproc-per-node=8", "--restart_policy", "any-failed"]
    args = parser.parse_args([*typed, "--ft-early-detection", "x.py"])
    assert (args.term_timeout, args.nproc_per_node, args.ft_restart_policy) == (60.0, "8", "any-failed")
    assert (args.workers_stop_timeout, args.ft_warm_start, args.ft_early_detection) == (5.0, "auto", True)
    args = parser.parse_args(["--ft-param-rank_heartbeat_timeout=-1", "x.py"])
    with pytest.raises(ConfigError, match="--ft-rank-heartbeat-timeout: '-1' is not allowed"):
        FaultToleranceConfig.from_args(args)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--ft-restart-policy=min-healthy", "x.py"])
    assert stop.value.code == 2
    assert "min-healthy keeps the other ranks running" in capsys.readouterr().err
    text = parser.format_help()
    assert (
        "--ft-rank-heartbeat-timeout SECONDS" in text and "longest time between two heartbeats [2700]" in text
    )
    assert "--ft-param-rank" not in text


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
