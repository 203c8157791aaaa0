"""The whole command line: what comes out when it is right; one line and exit code 2 when not; torchrun's options."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.run import get_args_parser

from holdfast.fault_tolerance.config import PAST
from holdfast.fault_tolerance.config_fields import TORCH, Option, resolve
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line import torch_options
from holdfast.fault_tolerance.launcher.command_line.args_parser import default_text
from holdfast.fault_tolerance.launcher.command_line.checks import (
    KEEP_ALIVE,
    NO_ID,
    READ,
    UNUSED,
    without_effect,
)
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS
from holdfast.fault_tolerance.launcher.command_line.options import Vocabulary, read, scan
from holdfast.fault_tolerance.launcher.command_line.torch_options import (
    TABLE,
    installed_options,
    rdzv_settings,
)
from holdfast.fault_tolerance.launcher.warm.plan import Request, request_of
from holdfast.lazy import NEWEST_TORCH, release
from tests.config.settings_of_releases import HERE, SETTINGS, VARIABLE, flags, shown

BEAT = "rank_heartbeat_timeout"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PET_", "FAULT_TOL_", "TORCH_ELASTIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")


def yaml_file(text: str) -> str:
    Path("ft.yaml").write_text(text)
    return "ft.yaml"


def said(argv: list[str], capsys: pytest.CaptureFixture[str], environ: dict[str, str] | None = None) -> str:
    """The reason why a wrong command line is refused, on one line."""
    with pytest.raises(ConfigError) as caught:
        read(argv, environ or {})
    assert capsys.readouterr() == ("", "")
    return " ".join(str(caught.value).split())


def test_the_launchers_options() -> None:
    """Their defaults: docs/reference/settings.md."""
    found = read(["train.py", "--lr", "1"], {})
    assert (found.torch.training_script, found.torch.training_script_args) == ("train.py", ["--lr", "1"])
    assert set(found.resolved.origins.values()) == {"default"} and found.warnings == ()
    typed = (
        "--term_timeout 60 --ft-workers-stop-timeout=7 --ft-restarts-reset-on-progress --ft_run_dir runs "
        "--ft-preempted-exit-code 75 --ft-node-timeout 3 --restart_policy any-failed --ft-warm-start off train.py"
    )
    found = read(typed.split(), {})
    assert (found.term_timeout, found.workers_stop_timeout, found.node_timeout) == (60.0, 7.0, 3.0)
    assert (found.restarts_reset_on_progress, found.run_dir, found.preempted_exit_code) == (True, "runs", 75)
    assert found.warnings == ()
    environ = {"PET_FT_EARLY_DETECTION": "1"}
    assert read(["train.py"], environ).early_detection
    assert not read(["--ft-param-early_detection=off", "train.py"], environ).early_detection


def test_file_environment_and_flags_apply_together() -> None:
    path = yaml_file(f"fault_tolerance: {{{BEAT}: 20, safety_factor: 2, log_level: WARN}}\n")
    environ = {"PET_FT_SAFETY_FACTOR": "3", "PET_FT_LOG_LEVEL": "ERROR"}
    found = read(["--fault-tol-cfg-path", path, "--ft-param-log_level=DBG", "train.py"], environ).resolved
    config = found.config
    assert (config.rank_heartbeat_timeout, config.safety_factor, config.log_level) == (20.0, 3.0, 10)
    assert found.origins[BEAT] == "yaml ft.yaml"
    assert found.origins["safety_factor"] == "env PET_FT_SAFETY_FACTOR"
    assert found.origins["log_level"] == "--ft-param-log_level"


def test_the_flag_names_the_file_before_the_environment_does() -> None:
    path = yaml_file(f"fault_tolerance: {{{BEAT}: 20}}\n")
    environ = {"PET_FT_CFG_PATH": "/nowhere.yaml", "FAULT_TOL_CFG_PATH": "/nowhere.yaml"}
    found = read([f"--ft-cfg-path={path}", "train.py"], environ)
    assert found.resolved.config.rank_heartbeat_timeout == 20.0
    assert read(["train.py"], {"FAULT_TOL_CFG_PATH": " "}).warnings == ()


def test_nemo_runs_command_line() -> None:
    """NeMo-Run names a file that it never writes, and passes settings as flags, or --ignore-missing-… without any."""
    environ = {"FAULT_TOL_CFG_PATH": "never_written.yml"}
    torchrun = "--rdzv-backend c10d --rdzv-endpoint host:29500 --rdzv-id 1 --nnodes 2 --nproc-per-node 8 --node-rank 1"
    line = f"--ft-param-initial_rank_heartbeat_timeout 1800 --ft-param-{BEAT} 300 --max-restarts 3 {torchrun} --tee 3"
    found = read([*line.split(), "train.py"], environ)
    assert found.resolved.config.rank_heartbeat_timeout == 300.0
    assert found.torch.node_rank == 1
    (warning,) = found.warnings
    assert warning.startswith("never_written.yml: no such file (named by FAULT_TOL_CFG_PATH)")
    quiet = read(["--ignore-missing-fault-tol-cfg", *torchrun.split(), "train.py"], environ)
    assert quiet.warnings == ()


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n"])
@pytest.mark.parametrize("variable", ["FAULT_TOL_CFG_PATH", "PET_FT_CFG_PATH", "PET_FAULT_TOL_CFG_PATH", ""])
def test_an_empty_file_needs_settings_on_the_command_line(
    variable: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    yaml_file(content)
    argv, environ = ([], {variable: "ft.yaml"}) if variable else (["--ft-cfg-path=ft.yaml"], {})
    found = read([*argv, "--ft-rank-heartbeat-timeout=7", "train.py"], environ)
    assert found.resolved.config.rank_heartbeat_timeout == 7.0
    (warning,) = found.warnings
    assert warning.startswith("ft.yaml: the file is empty")
    assert said([*argv, "train.py"], capsys, environ).startswith("ft.yaml: the file is empty")


@pytest.mark.parametrize(
    ("argv", "environ", "seconds"),
    [
        (["--shutdown-timeout=9"], {}, 9.0),
        (["--shutdown-timeout=0"], {}, 0.0),
        (["--shutdown-timeout=9", "--workers-stop-timeout=2"], {}, 2.0),
        (["--shutdown-timeout=9"], {"PET_WORKERS_STOP_TIMEOUT": "2"}, 2.0),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8"}, 8.0),
        (["--shutdown-timeout=9"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8"}, 9.0),
    ],
)
def test_who_decides_how_long_stopping_takes(
    argv: list[str], environ: dict[str, str], seconds: float
) -> None:
    assert read([*argv, "train.py"], environ).workers_stop_timeout == seconds


def test_what_is_asked_for_the_ranks() -> None:
    argv = ["--nproc-per-node=4", "--ft-preload=numpy", "-m", "json.tool", "--lr", "1"]
    found = request_of(read(argv, {"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGALRM"}))
    signals = ("SIGTERM", "SIGALRM")
    ranks = Request("auto", "json.tool", ("--lr", "1"), module=True, preload=("numpy",), signals=signals)
    assert found == ranks
    one = request_of(read(["--numa-binding=node", "train.py"], {}))
    assert replace(one, signals=()) == Request("auto", "train.py", numa=True, several=False)


def test_misspelt_variables_of_torchrun_are_told() -> None:
    environ = dict.fromkeys(("PET_MAX_RESTART", "PET_QQQQ", "PET_NNODES", "PET_TERM_TIMEOUT", "PETER"), "1")
    assert read(["train.py"], environ).warnings == (
        "environment variable PET_MAX_RESTART has no effect: ft_launcher has no such option; "
        "did you mean PET_MAX_RESTARTS?",
        "environment variable PET_QQQQ has no effect: ft_launcher has no such option; unset it",
    )


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--ft-cfg-path=nowhere.yaml", "train.py"], "nowhere.yaml: no such file"),
        (["--ft-cfg-path=.", "train.py"], ".: cannot be read: Is a directory"),
        (["--ft-cfg-path=", "train.py"], "--ft-cfg-path: '' is not allowed: give a path"),
        ([f"--ft-{BEAT}", "-1e3", "train.py"], f"--ft-{BEAT}: '-1e3' is not allowed: "),
        (["--ft-rank-section-timeouts", "step:", "train.py"], "section 'step' has no limit"),
        (["--ft-rank-hartbeat-timeout=3", "train.py"], "did you mean --ft-rank-heartbeat-timeout?"),
        (["--restart-policy=min-healthy", "train.py"], "--restart-policy: 'min-healthy' is not allowed: min-healthy "),
        (["trian.py"], "; did you mean 'train.py'?"),
        ([], "no training script"),
        ([f"--ft-{BEAT}=a\nb", "train.py"], "'a\\nb' is not allowed"),
        (["--xy\nz", "train.py"], "unknown option --xy z"),
    ],
)  # fmt: skip
def test_a_wrong_command_line(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in said(argv, capsys)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("PET_FT_RANK_HEARTBEAT_TIMEOUT", "nan", "PET_FT_RANK_HEARTBEAT_TIMEOUT: 'nan' is not allowed"),
        ("PET_TERM_TIMEOUT", "soon", "PET_TERM_TIMEOUT: 'soon' is not allowed"),
        ("PET_FT_RANK_HARTBEAT_TIMEOUT", "3", "did you mean PET_FT_RANK_HEARTBEAT_TIMEOUT?"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'x' is not allowed"),
        ("FAULT_TOL_CFG_PATH", "nowhere.yaml", "nowhere.yaml: no such file (named by FAULT_TOL_CFG_PATH)"),
        ("PET_MAX_RESTARTS", "many", "PET_MAX_RESTARTS: 'many' is not allowed: give a whole number"),
        ("PET_START_METHOD", "magic", "PET_START_METHOD: 'magic' is not allowed: give one of spawn, fork"),
        ("PET_STANDALONE", "yes", "PET_STANDALONE: 'yes' is not allowed: give 0 or 1"),
        ("PET_NO_PYTHON", "", "PET_NO_PYTHON: '' is not allowed: give 0 or 1"),
    ],
)
def test_a_wrong_environment(
    variable: str, value: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in said(["train.py"], capsys, {variable: value})


def test_a_wrong_setting_is_found_without_importing_torch() -> None:
    code = """
import sys
from holdfast.fault_tolerance.launcher.main import main
for line in "--ft-log-level=LOUD train.py", "--nproc-per-node=cpu nowhere.py", "--nproc-per-node=2 -m":
    print(main(line.split()), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2 False\n" * 3)
    lines = done.stderr.splitlines()
    assert len(lines) == 3 and all(line.startswith("ft_launcher: error: ") for line in lines)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(["--help"], {})
    text, err = capsys.readouterr()
    assert (caught.value.code, err) == (0, "")
    assert text.isascii()  # a terminal in any locale can show it
    for option in OPTIONS:
        if option.group == PAST:
            assert (option.name in text.split()) is bool(option.names)
            continue
        (line,) = (each for each in text.splitlines() if each.startswith(f"  {option.name} "))
        assert line.endswith(f"[{default_text(option)}]")
        assert len(line) <= 120
    for theirs in ("--nproc-per-node", "--rdzv-backend", "--tee", "--standalone", "--virtual-local-rank"):
        assert theirs in text
    assert "\n  --ft-nvrx-logfile: --ft-launcher-log\n" in text
    assert "\nhealth of nodes:\n" in text
    assert "YAML file < environment < command line" in text


SCRIPT = "import sys; print('trained', *sys.argv[1:])\n"


def test_job_with_every_setting_runs_and_reports_one_line(tmp_path: Path) -> None:
    """Keys in the file, flags on the command line, one variable."""
    (tmp_path / "train.py").write_text(SCRIPT)
    values = {each.name: each.values[1] for each in SETTINGS if each.is_key}
    (tmp_path / "ft.yaml").write_text(yaml.safe_dump({"fault_tolerance": values}))
    command = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--ft-cfg-path=ft.yaml"]
    command += [f"{flags(each)[0]}={each.values[1]}" for each in SETTINGS if not each.is_key]
    done = subprocess.run(
        [*command, "train.py", "--lr=1"],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), VARIABLE: "4"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "trained --lr=1\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if "accepted, " in line]
    assert len(lines) == 1 and HERE in lines[0]
    assert (tmp_path / "job_cycle0.log").read_text() == "rank 0: trained --lr=1\n"
    assert lines[0] in (tmp_path / "ft.log").read_text()
    assert not any(each.name in done.stderr for each in SETTINGS if each.is_effective)
    assert all(f" {shown(each)}" in lines[0] for each in SETTINGS if each.message)
    assert f"{VARIABLE} (" in lines[0]


# -- options of torchrun: equal to the installed torch's apart from what is documented, and checked before any start


def accept_additions(what: str, added: set[str]) -> set[str]:
    """What a torch newer than the tested ones adds to a table of ours, with a warning; else it has to be empty."""
    if added and release(torch.__version__) > NEWEST_TORCH:
        warnings.warn(f"torch {torch.__version__} has new {what}: {', '.join(sorted(added))}", stacklevel=2)
    else:
        assert not added, f"new {what}"
    return added


OURS = {"signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"}
"""Defaults that differ from torchrun's."""
OLDER = {"master_port": 29500}
"""Defaults of an older torch, with the same meaning."""


def ours(argv: list[str], environ: dict[str, str] | None = None) -> dict[str, Any]:
    line = scan(argv, Vocabulary(installed_options()))
    values, _ = resolve(installed_options(), line.torch, environ or {})
    found = {option.key: option.default for option in installed_options() if option.key != "help"} | values
    return {**found, "training_script": line.script, "training_script_args": line.script_args}


def theirs(argv: list[str]) -> dict[str, Any]:
    found = vars(get_args_parser().parse_args(argv))
    for name, default in OLDER.items():
        if found.get(name) == default and not any(name.replace("_", "-") in word for word in argv):
            found[name] = None
    return found


@cache
def actions() -> dict[str, argparse.Action]:
    """torch's actions by the name of their option."""
    return {
        flag[2:]: action
        for action in get_args_parser()._actions
        for flag in action.option_strings
        if flag.startswith("--") and "_" not in flag
    }


def test_known_options_are_those_of_the_installed_torch() -> None:
    known, real = {option.names[0]: option for option in installed_options()}, actions()
    added = accept_additions("options of torchrun", set(real) - set(known))
    assert set(known) - set(real) <= {"signals-to-handle"}  # new in 2.10, and ours in each version
    for name, action in real.items():
        if name in added:
            continue
        option = known[name]
        letters = {flag[1:] for flag in action.option_strings if not flag.startswith("--")}
        assert letters == ({option.letter} if option.letter else set())
        assert bool(option.metavar) == (action.nargs is None)
        assert bool(option.variables) == (type(action).__name__ in ("env", "check_env")), name
        for word in action.choices or () if name != "print-completion" else ():
            assert option.parse(word) == word
        if name not in ("help", "print-completion"):
            assert action.default in (option.default, OLDER.get(option.key)) or option.key in OURS
        if option.metavar and action.type in (int, float):
            assert option.parse("1") == action.type("1")


def test_option_of_a_newer_torch_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_options, "installed_torch", lambda: "2.8.0+cpu")
    known = installed_options()
    with pytest.raises(ConfigError, match=r"^--numa_binding needs a newer torch than the installed one$"):
        scan(["--numa_binding=x", "x.py"], Vocabulary(known))
    (warning,) = torch_options.unknown_variables(known, {"PET_SHUTDOWN_TIMEOUT": "3"})
    assert warning.startswith(
        "environment variable PET_SHUTDOWN_TIMEOUT has no effect: it needs a newer torch"
    )


@pytest.mark.parametrize("version", ["2.99.0", "2.9.0a0+git1234", ""])
def test_options_that_the_table_may_lack_are_asked_of_torch(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Of a newer torch or a special build; a release in the table is not asked."""
    assert torch_options.options_of_torch() == ()
    monkeypatch.setattr(torch_options, "installed_torch", lambda: version)
    found = {option.name: option for option in torch_options.options_of_torch()}
    for option in TABLE:
        if option.name in found and option.key != "help":
            assert bool(found[option.name].metavar) == bool(option.metavar)
            assert found[option.name].letter == option.letter
    new = Option("a_new_one", int, None, "N", "", TORCH, ("a-new-one",), ())
    line = scan(["--a_new=3", "x.py"], Vocabulary((*installed_options(), new)))
    assert resolve([new], line.torch, {})[0] == {"a_new_one": 3}


VALUES = {
    "nnodes": ["1:4", "2"],
    "nproc-per-node": ["8", "12"],
    "max-restarts": ["3", " 5 "],
    "monitor-interval": ["0.5", "1e3"],
    "start-method": ["fork"],
    "node-rank": ["1"],
    "master-port": ["1234"],
    "shutdown-timeout": ["7"],
    "numa-binding": ["node"],
    "duplicate-stdout-filters": ["a,b", "a,,b", "", ","],
    "redirects": ["3", "0:3,1:1"],
    "role": ["two words", "-", ""],
}
SWITCHES = [each.names[0] for each in installed_options() if not each.metavar and each.key != "help"]


@st.composite
def options(draw: st.DrawFn) -> list[str]:
    """Words of one option, spelled as argparse allows it."""
    real = actions()
    name = draw(st.sampled_from(sorted((VALUES.keys() & real.keys()) | set(SWITCHES))))
    flag = draw(st.sampled_from(real[name].option_strings))
    if name in SWITCHES:
        return [flag]
    value = draw(st.sampled_from(VALUES[name]))
    if flag.startswith("--"):
        return draw(st.sampled_from([[f"{flag}={value}"], [flag, value]]))
    return [flag + value] if value else [flag, value]


@given(st.lists(options(), max_size=6))
def test_namespace_equals_torchruns(words: list[list[str]]) -> None:
    argv = [*(word for each in words for word in each), "train.py", "--lr", "1"]
    assert ours(argv) == {**theirs(argv), **OURS}


def test_torchs_variables_apply_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {
        "PET_NNODES": "1:2",
        "PET_MAX_RESTARTS": "5",
        "PET_STANDALONE": "2",
        "PET_MODULE": "0",
        "PET_ROLE": "",
        "PET_SIGNALS_TO_HANDLE": "SIGTERM",
        "PET_NUMA_BINDING": "node",
        "PET_LOGS_SPECS": "x",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    argv = ["--max-restarts=2", "x.py"]
    assert ours(argv, environ) == {**theirs(argv), "signals_to_handle": "SIGTERM"}


def test_a_variable_that_a_flag_overrides_is_not_read() -> None:
    given = scan(["--max_restarts=1"], Vocabulary(installed_options())).torch
    values, origins = resolve(TABLE, given, {"PET_MAX_RESTARTS": "x", "PET_ROLE": "x"})
    assert values == {"max_restarts": 1, "role": "x"}
    assert origins == {"max_restarts": "--max_restarts", "role": "env PET_ROLE"}


# -- the rendezvous ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "is_one_node"),
    [
        ((), True),
        (("--rdzv-endpoint=localhost:0",), True),
        (("--rdzv-endpoint=host:29500",), False),  # at which a spare may join
        (("--rdzv-endpoint=host",), False),
        (("--rdzv-endpoint=host:29500", "--standalone"), True),
        (("--rdzv-endpoint=localhost:0", "--nnodes=1:2"), False),
    ],
)
def test_one_node_is_one_that_no_other_can_join(argv: tuple[str, ...], is_one_node: bool) -> None:
    assert checked(*argv).is_one_node is is_one_node


@pytest.mark.parametrize(
    ("nodes", "nnodes", "is_one_node"), [("1", "1", True), ("2", "1", False), ("1", "1:2", False)]
)
def test_no_other_node_can_join_in_a_slurm_job_of_one(nodes: str, nnodes: str, is_one_node: bool) -> None:
    argv = ["--rdzv-endpoint=host:29500", "--rdzv-id=7", f"--nnodes={nnodes}", "train.py"]
    assert read(argv, {"SLURM_JOB_NUM_NODES": nodes}).torch.is_one_node is is_one_node


def test_one_node_needs_no_id() -> None:
    assert checked("--rdzv-id=").rdzv_id == checked().rdzv_id == NO_ID
    assert checked("--rdzv-id=7").rdzv_id == "7"


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("last_cal_timeout=5", "last_cal_timeout has no effect: there is no such key; did you mean last_call_timeout?"),
        ("is_host=1, jointimeout=9", "jointimeout has no effect: there is no such key; did you mean join_timeout?"),
        ("xyz=1", "xyz has no effect: there is no such key; there are "
         "is_host, join_timeout, last_call_timeout, read_timeout, store_type"),
        ("close_timeout=5", "close_timeout has no effect: torch's rendezvous handler is not used"),
        ("keep_alive_interval=5", "keep_alive_interval has no effect: lost nodes are detected by --ft-node-timeout"),
    ],
)  # fmt: skip
def test_a_key_that_nobody_reads_is_a_warning(conf: str, said: str) -> None:
    assert without_effect(rdzv_settings(conf), "PET_RDZV_CONF") == [f"PET_RDZV_CONF: {said}"]


class Recorder(RendezvousParameters):
    """Keeps the keys that torch asks for."""

    def __init__(self, **config: Any) -> None:
        super().__init__("c10d", "localhost:0", "run", 1, 1, **config)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """As torch's, and remembered."""
        self.asked.add(key)
        return super().get(key, default)


@pytest.fixture(scope="module")
def first_store() -> None:
    """torch keeps a pipe for good from the first store of a process on, which is no leak of a test."""
    TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.mark.usefixtures("first_store")
def test_keys_are_those_that_the_installed_torch_reads() -> None:
    parameters = Recorder(is_host="1")
    backend, store = create_backend(parameters)
    create_handler(store, backend, parameters)
    known = READ | KEEP_ALIVE | UNUSED
    accept_additions("keys of --rdzv-conf", parameters.asked - known)
    assert known - parameters.asked <= {"cas_backoff_max_seconds"}


# -- values of torchrun's options that cannot work are refused before anything starts


def checked(*argv: str) -> SimpleNamespace:
    """torchrun's namespace."""
    return read([*argv, "train.py"], {}).torch


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--nnodes=2", "--node-rank=1"),
        ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=host:29500", "--node-rank=7"),
        ("--nnodes=3:3", "--nproc-per-node=auto"),
        ("--nproc-per-node=cpu", "--max-restarts=0", "--monitor-interval=0.001"),
        ("--redirects=0:3,1:1", "--tee=3", "--local-ranks-filter=0,1", "--nproc-per-node=2"),
        ("--local-ranks-filter=", "--nproc-per-node=1"),
        ("--rdzv-conf=join_timeout=60,read_timeout=5,is_host=1", "--shutdown-timeout=0"),
        ("--standalone", "--rdzv-backend=etcd", "--node-rank=5"),
        ("--run-path", "--no-python"),
        ("--run-path", "--module"),
        ("--master-port=0",),
        ("--log-dir=/dev/null",),
        ("--event-log-handler=console",),
        ("--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:29500"),
    ],
)
def test_what_torchrun_takes_is_taken(argv: tuple[str, ...]) -> None:
    checked(*argv)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        *(((f"--nnodes={value}",), f"--nnodes: '{value}' is not allowed")
          for value in ("0", "x", "2:1", "0:1", "1:2:3", "", "-1", "1:", "1.5")),
        (("--nnodes=3:2",), "MIN not above MAX"),
        *((("--nproc-per-node=" + value,), f"--nproc-per-node: '{value}'") for value in ("0", "-1", "x", "", "1.5")),
        *((("--max-restarts=" + value,), f"--max-restarts: '{value}' is not allowed: give a whole number, at least 0")
          for value in ("-1", "many")),
        (("--start-method=magic",), "--start-method: 'magic' is not allowed: give one of spawn, fork"),
        (("--numa-binding=magic",), "--numa-binding: 'magic' is not allowed: give one of node"),
        (("--standalone=x",), "--standalone: 'x' is not allowed: give 0 or 1"),
        *((("--monitor-interval=" + value,), f"--monitor-interval: '{value}' is not allowed: give a number greater "
          "than 0") for value in ("nan", "inf", "-1", "0")),
        (("--shutdown-timeout=-1",), "--shutdown-timeout: '-1' is not allowed"),
        *(((flag + "=" + value,), f"{flag}: '{value}' is not allowed: give 0 (none)")
          for flag in ("--redirects", "--tee") for value in ("4", "x", "0:4", "", "0:1,1")),
        (("--local-ranks-filter=0,x",), "--local-ranks-filter: '0,x' is not allowed"),
        (("--local-ranks-filter=9", "--nproc-per-node=2"), "'9' is not allowed: this node has 2 local ranks, 0 to 1"),
        (("--local-ranks-filter=0,1",), "'0,1' is not allowed: this node has one local rank, 0"),
        (("--signals-to-handle=SIGTERM,SIGFOO",), "there is no such signal"),
        (("--signals-to-handle=SIGKILL",), "no program can catch SIGKILL"),
        (("--signals-to-handle=",), "--signals-to-handle: '' is not allowed"),
        (("--master-port=70000",), "--master-port: '70000' is not allowed"),
        (("--standalone", "--nnodes=2"), "--standalone is for one node, and --nnodes is 2"),
        (("--logs-specs=magic",), "--logs-specs: 'magic' is not allowed: no installed package offers it"),
        (("--event-log-handler=foo",), "--event-log-handler: 'foo' is not allowed: give one of console, "),
        (("--rdzv-conf=timeout",), "--rdzv-conf: 'timeout' is not allowed: 'timeout' is not KEY=VALUE"),
        (("--rdzv-conf=join_timeout=soon",), "join_timeout has 'soon'"),
        (("--rdzv-conf=join_timeout=0",), "join_timeout has '0'"),
        (("--rdzv-conf=is_host=maybe",), "is_host has 'maybe'; give 0 or 1"),
        (("--rdzv-conf=store_type=hash",), "store_type has 'hash'; give tcp"),
        (("--rdzv-backend=etcd-v2",), "Holdfast restarts nodes together through a c10d store; use c10d"),
        (("--rdzv-endpoint=host:x",), "--rdzv-endpoint: "),
        (("--rdzv-endpoint=ho st:1",), "--rdzv-endpoint: "),
        (("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint="), "--rdzv-endpoint: '' is not allowed: with "
         "--nnodes 2 give every node the HOST:PORT of node 0; a variable that it was given by was probably empty"),
        (("--nnodes=2", "--node-rank=2"), "--node-rank: 2 is not allowed: with --nnodes 2 give 0 to 1"),
        (("--node-rank=1",), "--node-rank: 1 is not allowed: with --nnodes 1:1 give 0"),
        (("--node-rank=-1",), "--node-rank: -1 is not allowed"),
        *((("--rdzv-id=" + value, "--nnodes=1:2"), f"--rdzv-id: {value!r} is not allowed: the variable that it was "
          "given by was probably empty; with --nnodes 1:2 give every node the same id") for value in ("", " ")),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(
    argv: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in said([*argv, "train.py"], capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this node has a GPU")
def test_gpu_ranks_need_a_gpu() -> None:
    with pytest.raises(ConfigError, match="torch finds no GPU on this node"):
        checked("--nproc-per-node=gpu")


def test_signals_are_normalised() -> None:
    assert checked("--signals-to-handle=term, 2,SIGUSR1").signals_to_handle == "SIGTERM,SIGINT,SIGUSR1"
