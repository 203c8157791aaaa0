"""Whether there is something to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.training_script import check_script


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
    run("some.module", module=True)
    run("sh", no_python=True)
    Path("run.sh").chmod(0o755)
    run("./run.sh", no_python=True)


@pytest.mark.parametrize(
    ("script", "switches", "said"),
    [
        (None, {}, "no training script"),
        ("", {}, "no training script"),
        (None, {"module": True}, "no training script"),
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
