"""Whether there is something to run."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.checks import check_log_files, check_script, make_log_dir


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


def test_python_exec_that_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "/no/such/python")
    with pytest.raises(ConfigError, match="PYTHON_EXEC: there is no program '/no/such/python'"):
        run("train.py")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_script() -> None:
    Path("train.py").chmod(0)
    with pytest.raises(ConfigError, match="cannot be read by this user"):
        run("train.py")


def test_a_module_of_another_python_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", sys.executable)
    run("nowhere", module=True)


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


def test_the_null_device_is_no_folder_and_allowed() -> None:
    make_log_dir("/dev/null")


def test_it_is_made_and_left_empty(tmp_path: Path) -> None:
    for _ in range(2):
        make_log_dir(str(tmp_path / "a" / "b"))
    assert list((tmp_path / "a").rglob("*")) == [tmp_path / "a" / "b"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/proc/x", "No such file or directory"),
        ("/proc", "No such file or directory"),
        ("file/x", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(ConfigError) as caught:
        make_log_dir(path)
    line = str(caught.value)
    assert line.startswith("--log-dir: no logs can be kept in /")
    assert f"{path}: {why}; give another folder" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("prefix", "log_file", "why"),
    [
        ("nowhere/job", None, "--ft-per-cycle-applog-prefix: no file can be made in "),
        ("nowhere/job", None, "nowhere: No such file or directory; make the folder or give another path"),
        ("file/job", None, "file: Not a directory"),
        ("/proc/job", None, "/proc: No such file or directory"),
        (None, "nowhere/ft.log", "nowhere/ft.log cannot be written to: No such file or directory"),
        (None, ".", "--ft-launcher-log: "),
        (None, ".", "cannot be written to: Is a directory"),
    ],
)
def test_log_file_that_cannot_be_written_is_one_line(
    prefix: str | None, log_file: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(ConfigError) as caught:
        check_log_files(prefix, log_file)
    assert why in str(caught.value) and "\n" not in str(caught.value)
