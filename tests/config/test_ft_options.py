"""The frozen list of our options and of other releases' settings: a name that a script uses never goes away.

And what is checked of a command line before anything starts: whether there is something to run, and a place for logs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import yaml

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.config_fields import Given, Option, parse_with
from holdfast.fault_tolerance.config_sources import load
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.checks import check_log_files, check_script, make_log_dir
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS, reports
from holdfast.fault_tolerance.launcher.command_line.torch_options import TABLE
from tests.config.settings_of_releases import SETTINGS, flags, shown, variables


def both(key: str) -> list[str]:
    """The two names that each option has, and most have no other."""
    dashed = key.replace("_", "-")
    return [f"ft-{dashed}", f"ft-param-{dashed}"]


USUAL = """
    workload_check_interval initial_rank_heartbeat_timeout rank_heartbeat_timeout rank_section_timeouts
    rank_out_of_section_timeout safety_factor rank_termination_signal log_level restarts_reset_on_progress exit_timeout
    finished_timeout preempted_exit_code same_failure_limit exclude_suspects node_domain run_dir metrics_file
    metrics_port metrics_address warm_start preload health_command health_action health_write_path health_timeout
    node_timeout ignore_optimizer_steps early_detection
"""
# A new option adds a name here; none is ever removed.
FROZEN = {
    **{key: both(key) for key in USUAL.split()},
    "cfg_path": [*both("cfg_path"), "fault-tol-cfg-path"],
    "ignore_missing_cfg": [*both("ignore_missing_cfg"), "ignore-missing-fault-tol-cfg"],
    "restart_policy": [*both("restart_policy"), "restart-policy"],
    "term_timeout": ["term-timeout", *both("term_timeout")],
    "workers_stop_timeout": ["workers-stop-timeout", *both("workers_stop_timeout")],
    "launcher_log": [*both("launcher_log"), *both("nvrx_logfile")],
    **{
        each.name: [name for key in (each.name, *each.more_flags) for name in both(key)]
        for each in SETTINGS
        if not each.key
    },
    "gpus_per_numa": [],
}


def test_the_frozen_list_of_names() -> None:
    assert {option.key: list(option.names) for option in OPTIONS} == FROZEN


def test_no_name_means_two_things() -> None:
    names = [name for option in (*OPTIONS, *TABLE) for name in option.names]
    assert len(names) == len(set(names))


def test_variables() -> None:
    keyed = {option.key: option.variables for option in OPTIONS}
    assert keyed["cfg_path"] == (
        "PET_FT_CFG_PATH",
        "PET_FT_PARAM_CFG_PATH",
        "PET_FAULT_TOL_CFG_PATH",
        "FAULT_TOL_CFG_PATH",
    )
    assert keyed["term_timeout"] == ("PET_TERM_TIMEOUT", "PET_FT_TERM_TIMEOUT", "PET_FT_PARAM_TERM_TIMEOUT")
    assert keyed["log_level"] == ("PET_FT_LOG_LEVEL", "PET_FT_PARAM_LOG_LEVEL")
    known = [name for each in keyed.values() for name in each]
    assert len(known) == len(set(known))


def option(key: str) -> Option:
    return next(each for each in OPTIONS if each.key == key)


def test_values_of_the_launcher() -> None:
    """Real jobs have the others."""
    assert option("term_timeout").parse("None") is None
    assert option("preload").parse("torch, my.model") == ("torch", "my.model")
    assert option("preload").parse("") == ()
    assert option("metrics_address").parse("::") == "::"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("workers_stop_timeout", value) for value in ("", "None", "0", "nan", "x")),
        *(("node_timeout", value) for value in ("", "None", "0", "nan", "x")),
        *(("term_timeout", value) for value in ("0", "-1", "nan", "inf", "soon")),
        *(("preempted_exit_code", value) for value in ("-1", "256", "x", "1.0", "")),
        *(("metrics_port", value) for value in ("0", "65536", "x")),
        *(("warm_start", value) for value in ("yes", "", "OFF")),
        *(("preload", value) for value in ("torch;os", "a..b", ",", "-c")),
        *((key, "") for key in ("run_dir", "cfg_path", "launcher_log", "metrics_file", "metrics_address")),
        *((key, "  ") for key in ("run_dir", "cfg_path", "launcher_log", "metrics_file", "metrics_address")),
        ("per_cycle_applog_prefix", ""),
        ("per_cycle_applog_prefix", "  "),
        ("per_cycle_applog_prefix", "/logs/"),
        ("metrics_file", "job.txt"),
    ],
)
def test_values_of_the_launcher_that_are_refused(key: str, value: str) -> None:
    with pytest.raises(ValueError, match="give "):
        option(key).parse(value)


# -- settings of other releases: accepted in every spelling, checked, and reported in at most two lines


BY_NAME = {name: option for option in OPTIONS for name in option.names}
KEYS = [each for each in SETTINGS if each.is_key]


def written(folder: Path, values: object) -> str:
    path = folder / "ft.yaml"
    path.write_text(yaml.safe_dump({"fault_tolerance": values}))
    return str(path)


def reported(values: Mapping[str, object]) -> str:
    return "\n".join(reports(values))


def test_table_has_every_setting_of_the_frozen_list() -> None:
    without_effect = {each.name: each for each in SETTINGS if not each.is_effective}
    assert {each.key for each in OPTIONS if each.no_effect} == set(without_effect) | {"gpus_per_numa"}
    keys = {each.key for each in OPTIONS if each.no_effect and each.is_setting}
    assert keys == {name for name, each in without_effect.items() if each.is_key}


def test_every_flag_is_accepted_and_reported() -> None:
    options = BY_NAME
    for setting in SETTINGS:
        default, other = setting.values[:2]
        for flag in flags(setting):
            option = options[flag[2:].replace("_", "-")]
            assert option.key == (setting.key or setting.name), flag
            assert option.is_boolean is isinstance(default, bool), flag
            parse = option.parse
            if default is not None:
                assert reported({setting.name: parse(str(default))}) == "", flag
            text = reported({setting.name: parse(str(other))})
            assert setting.message in text, flag
            assert (shown(setting) in text) is bool(setting.message), flag


def test_every_variable_is_accepted() -> None:
    known = {name for option in OPTIONS for name in option.variables}
    for setting in SETTINGS:
        for variable in variables(setting):
            assert variable in known
            if setting.is_key:
                found = load({}, {variable: str(setting.values[1])})
                assert found.origins[setting.name] == f"env {variable}"
                assert getattr(found.config, setting.name) == setting.values[1]
                assert load({}, {variable: ""}).config == FaultToleranceConfig()


def test_every_key_is_accepted_in_yaml(tmp_path: Path) -> None:
    path = written(tmp_path, {each.name: each.values[1] for each in KEYS})
    found = load({}, {}, path)
    for setting in KEYS:
        assert getattr(found.config, setting.name) == setting.values[1]
        assert found.origins[setting.name] == f"yaml {path}"
    path = written(tmp_path, {each.name: each.values[0] for each in KEYS})
    assert reports(vars(load({}, {}, path).config)) == []


def test_wrong_type_is_refused_in_one_line(tmp_path: Path) -> None:
    for setting in SETTINGS:
        flag, variable = flags(setting)[0], variables(setting)[0]
        for value in setting.values[2:]:
            if setting.is_key:
                with pytest.raises(ConfigError) as caught:
                    load({}, {}, written(tmp_path, {setting.name: value}))
                where = f"{tmp_path}/ft.yaml, line 2, {setting.name}: {value!r}"
                assert str(caught.value).startswith(f"{where} is not allowed: give ")
            if value == 5:  # on the command line it is a text
                continue
            with pytest.raises(ConfigError) as caught:
                parse_with(BY_NAME[flag[2:]].parse, str(value), flag)
            assert str(caught.value).startswith(f"{flag}: '{value}' is not allowed: give ")
            if setting.is_key:
                with pytest.raises(ConfigError, match=f"^{variable}: "):
                    load({}, {variable: str(value)})
                with pytest.raises(ConfigError, match=f"^{flag}: "):
                    load({setting.name: Given(str(value), flag)}, {})


def test_reason_is_given_once_for_several_settings() -> None:
    (line,) = reports({"enable_log_server": True, "log_server_port": 1, "rdzv_impl": "legacy"})
    assert line.startswith("accepted, no effect here: --ft-rdzv-impl (")
    assert "; --ft-enable-log-server, --ft-log-server-port (" in line
    assert line.count("(") == 2


def test_later_settings_at_default_are_not_written() -> None:
    """NVRx 0.4 reads the file that Holdfast writes."""
    values = FaultToleranceConfig(segment=4, min_progress_iterations=2).to_dict()
    assert (values["segment"], values["min_progress_iterations"]) == (4, 2)
    assert "enable_nic_monitor" in values
    assert not values.keys() & {"skip_section_response", "max_no_progress_cycles", "num_warmup_iterations"}


# -- whether there is something to run -----------------------------------------------------------------------


def run(script: str | None, **switches: bool) -> None:
    check_script(script, **{"module": False, "no_python": False, "run_path": False, **switches})


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    Path("run.sh").write_text("#!/bin/sh\n")
    Path("package").mkdir()
    Path("program").mkdir()
    Path("program/__main__.py").write_text("print(1)\n")


def test_scripts_that_can_be_run() -> None:
    run("train.py")
    run(str(Path("train.py").absolute()))
    run("program")
    run("train.py", run_path=True)
    run("train.py", run_path=True, no_python=True)
    run("sh", no_python=True)
    Path("run.sh").chmod(0o755)
    run("./run.sh", no_python=True)


@pytest.mark.parametrize(
    "module", ["train", "train.nothing", "package", "json.tool", "pytest", ".odd", "__main__"]
)
def test_modules_that_may_be_there(module: str) -> None:
    """Found in the current folder, in the standard library, among what is installed; or it cannot be known."""
    Path("train.py").write_text("raise SystemExit('a look imported it')\n")
    before = list(sys.path)
    run(module, module=True)
    assert sys.path == before and "train" not in sys.modules


def test_a_finder_of_an_editable_installation_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            return ModuleSpec(name, None) if name == "editable" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    run("editable.train", module=True)
    with pytest.raises(ConfigError, match="there is no module 'other'"):
        run("other.train", module=True)


def test_python_exec_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of another Python is not searched."""
    monkeypatch.setenv("PYTHON_EXEC", sys.executable)
    run("nowhere", module=True)
    monkeypatch.setenv("PYTHON_EXEC", "/no/such/python")
    with pytest.raises(ConfigError, match="PYTHON_EXEC: there is no program '/no/such/python'"):
        run("train.py")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_script() -> None:
    Path("train.py").chmod(0)
    with pytest.raises(ConfigError, match="cannot be read by this user"):
        run("train.py")


@pytest.mark.parametrize(
    ("script", "switches", "said"),
    [
        (None, {}, "no training script"),
        ("", {}, "no training script"),
        (None, {"module": True}, "no training script"),
        ("trian", {"module": True}, "there is no module 'trian' to run with -m: neither in /"),
        ("trian.loop", {"module": True}, f"nor on the paths of {sys.executable}; did you mean 'train'?"),
        ("trian.py", {}, "; did you mean 'train.py'?"),
        ("nowhere/train.py", {}, "there is no training script 'nowhere/train.py' in /"),
        ("/nowhere/train.py", {}, "there is no training script '/nowhere/train.py'"),
        ("nowhere.py", {"run_path": True, "module": True}, "there is no training script"),
        ("train", {"module": True, "no_python": True}, "--no-python and -m/--module exclude each other"),
        ("package", {}, "is a folder without a __main__.py"),
        ("./run.sh", {"no_python": True}, "'./run.sh' is not executable: chmod +x ./run.sh"),
        ("./nowhere.sh", {"no_python": True}, "there is no program './nowhere.sh'"),
        ("train.py", {"no_python": True}, "there is no program 'train.py'"),
    ],
)
def test_scripts_that_cannot(script: str | None, switches: dict[str, bool], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(script, **switches)
    assert said in str(caught.value)


# -- where logs are written ----------------------------------------------------------------------------------


def test_log_dir_is_made_and_left_empty(tmp_path: Path) -> None:
    make_log_dir("/dev/null")
    for _ in range(2):
        make_log_dir(str(tmp_path / "a" / "b"))
    assert list((tmp_path / "a").rglob("*")) == [tmp_path / "a" / "b"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/proc/x", "No such file or directory"),
        ("/proc", "No such file or directory"),
        ("train.py/x", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_used_is_one_line(path: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_log_dir(path)
    line = str(caught.value)
    assert line.startswith("--log-dir: no logs can be kept in /") and "\n" not in line
    assert f"{path}: {why}; give another folder" in line


@pytest.mark.parametrize(
    ("prefix", "log_file", "why"),
    [
        ("nowhere/job", None, "--ft-per-cycle-applog-prefix: no file can be made in "),
        ("nowhere/job", None, "nowhere: No such file or directory; make the folder or give another path"),
        ("train.py/job", None, "train.py: Not a directory"),
        ("/proc/job", None, "/proc: No such file or directory"),
        (None, "nowhere/ft.log", "nowhere/ft.log cannot be written to: No such file or directory"),
        (None, ".", "--ft-launcher-log: "),
        (None, ".", "cannot be written to: Is a directory"),
    ],
)
def test_log_file_that_cannot_be_written_is_one_line(
    prefix: str | None, log_file: str | None, why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_log_files(prefix, log_file)
    assert why in str(caught.value) and "\n" not in str(caught.value)
