"""The whole command line: what comes out when it is right, and one line and exit code 2 when it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from holdfast.fault_tolerance.config import PAST
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.args_parser import default_text
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS, LauncherOptions
from holdfast.fault_tolerance.launcher.command_line.options import read
from holdfast.fault_tolerance.launcher.warm.plan import Request, request_of
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


def test_nothing_but_a_script() -> None:
    found = read(["train.py", "--lr", "1"], {})
    assert isinstance(found, LauncherOptions)
    assert (found.torch.training_script, found.torch.training_script_args) == ("train.py", ["--lr", "1"])
    assert set(found.resolved.origins.values()) == {"default"}
    assert (found.term_timeout, found.workers_stop_timeout, found.node_timeout) == (1800.0, 5.0, 10.0)
    assert (found.preempted_exit_code, found.restarts_reset_on_progress) == (0, False)
    assert (found.exit_timeout, found.finished_timeout) == (10.0, None)
    assert (found.run_dir, found.warm_start, found.preload) == (None, "auto", ())
    assert found.early_detection is False
    assert found.warnings == ()


def test_the_launchers_options() -> None:
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
    assert (found.config.rank_heartbeat_timeout, found.config.safety_factor, found.config.log_level) == (
        20.0,
        3.0,
        10,
    )
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
    environ = {
        "PET_MAX_RESTART": "3",
        "PET_QQQQ": "1",
        "PET_NNODES": "1",
        "PET_TERM_TIMEOUT": "5",
        "PETER": "1",
    }
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
        (["--max-restarts=-1", "train.py"], "--max-restarts: '-1' is not allowed"),
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
    ],
)
def test_a_wrong_environment(
    variable: str, value: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in said(["train.py"], capsys, {variable: value})


def test_a_wrong_setting_is_found_without_importing_torch() -> None:
    code = (
        "import sys\n"
        "from holdfast.fault_tolerance.launcher.main import main\n"
        "for argv in [['--ft-log-level=LOUD', 'train.py'], ['--nproc-per-node=cpu', 'nowhere.py'],\n"
        "             ['--nproc-per-node=2', '-m']]:\n"
        "    print(main(argv), 'torch' in sys.modules)"
    )
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
