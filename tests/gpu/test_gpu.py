"""`make gpu` without a GPU: each check on the CPU with stand-ins, the installation, and what is published."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.warm import gpu_evidence
from tests.gpu import gpu_check, gpu_environment, gpu_page
from tests.gpu.__main__ import CHECKS
from tests.processes import Spawner
from tests.straggler.kernels.conftest import NAMES, build_fakes, build_nvml

COMMAND = [sys.executable, "-m", "tests.gpu"]
DRY = {gpu_check.DEVICE: "cpu"}
SMI = """#!/bin/sh
case "$*" in
*compute-apps*) ;;
*memory.used*) echo 512 ;;
*driver_version*) echo 1.2.3 ;;
*clocks.max.sm*) echo "1980, 700.00, 88, 1200" ;;
*) echo "0, Stand-in, 0, No, Not Active, Not Active, Not Active, 88" ;;
esac
"""


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables that replace NVIDIA's driver, CUPTI, NVML and nvidia-smi by stand-ins."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: the stand-ins cannot be built")
    folder = tmp_path_factory.mktemp("stand-ins")
    build_fakes(folder)
    build_nvml(folder)
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    cupti = str(folder / NAMES[13])
    return {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_CUPTI": cupti,
        "HOLDFAST_CUPTI_LIBRARY": cupti,
        "NVML_INDEX": "0",
        **DRY,
    }


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_dry_run_passes_every_check(spawn: Spawner, stand_ins: dict[str, str], tmp_path: Path) -> None:
    job = spawn([*COMMAND, "--out", tmp_path], env={"TMPDIR": str(tmp_path), **stand_ins}, cwd=gpu_check.ROOT)
    code = job.wait(900)
    result = json.loads((tmp_path / "gpu.json").read_text())
    results = {row["result"] for row in result["rows"]}
    assert (code, results) == (0, {gpu_check.PASSED, gpu_check.NOT_POSSIBLE}), (
        job.output() + (tmp_path / "gpu.log").read_text()[-8000:]
    )
    assert [row["name"] for row in result["rows"]] == [name for check in CHECKS for name in check.rows]
    assert {path.name for path in tmp_path.iterdir()} == {"gpu.json", "gpu.md", "gpu.log"}
    assert gpu_page.main([str(tmp_path / "gpu.json")]) == 2  # a dry run is no evidence


@pytest.mark.parametrize(
    ("words", "environment", "reason"),
    [
        ([], {}, "this machine has no NVIDIA driver, so there is nothing to test."),
        (["hang"], {}, "there is no check hang; --list shows all."),
        (["--wheels", "/nowhere"], {}, "--wheels /nowhere: no such folder."),
        (["--out", "/dev/null"], DRY, "--out /dev/null: File exists."),
        ([], DRY | {"torch": "broken"}, "(ImportError: broken): set PYTHON to a Python that has it."),
    ],
)
def test_invalid_use_is_one_line_and_code_2(
    spawn: Spawner, tmp_path: Path, words: list[str], environment: dict[str, str], reason: str
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    paths = [str(tmp_path)] if "torch" in environment else []
    path = os.pathsep.join([*paths, os.environ["PYTHONPATH"]])
    job = spawn([*COMMAND, *words], env={**environment, "PYTHONPATH": path}, cwd=gpu_check.ROOT)
    assert job.wait() == 2
    (line,) = job.output().splitlines()
    assert line.startswith("make gpu: ") and line.endswith(reason)


@pytest.mark.slow
def test_install_without_compiler_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("CXX", "false")
    python, notes = gpu_environment.install(tmp_path, None)
    not_built = [f"{name} was not built" for name in gpu_environment.NATIVE]
    assert [note.partition(" (")[0] for note in notes] == not_built
    code = "import holdfast, torch; print(holdfast.__file__)"
    done = subprocess.run([python, "-c", code], env={}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path))


BREAKS = """
import subprocess, sys, time
from tests.gpu.gpu_check import Check, row

def run(folder):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield row("a", True)
    {end}

CHECKS = [Check("one", {seconds}, ("a", "b", "c"), run)]
"""


@pytest.mark.parametrize(
    ("end", "seconds", "reason"),
    [
        ("raise ValueError('broken')", 60, "the check exited with code 1: ValueError: broken"),
        ("time.sleep(600)", 15, "time limit of 15 s reached"),
        ("return", 60, "the check has not yielded this row"),
    ],
)
def test_broken_check_has_all_rows_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, seconds: int, reason: str
) -> None:
    module = f"check_that_breaks_{seconds}_{len(end)}"
    (tmp_path / f"{module}.py").write_text(BREAKS.format(end=end, seconds=seconds))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (check,) = import_module(module).CHECKS
    rows = gpu_check.run_check(check, tmp_path / "work", check.seconds)
    results = [(row.name, row.result) for row in rows]
    assert results[:3] == [("a", "passed"), ("b", "failed"), ("c", "not reached")]
    # Of a check that ended by itself, a process that is left is a failure.
    assert results[3:] == ([("no process is left", "failed")] if end == "return" else [])
    assert rows[1].reason == reason
    assert not gpu_check.processes_with(f"{os.getpid()}-one")


def row_of(check: str = "c", **fields: Any) -> dict[str, Any]:
    return {"check": check, "name": "n", "result": "passed", "figures": {}, "reason": "", **fields}


def result(**changes: Any) -> dict[str, Any]:
    """A run in which all that warm start needs has passed."""
    rows = [row_of(name=name) for name in gpu_page.NEEDED]
    whole: dict[str, Any] = {
        "gpu": "NVIDIA H100", "driver": "580.1", "torch": "2.11.0", "cuda": "13.0", "python": "3.12.3",
        "day": "2026-11-23", "commit": "abc1234", "cores": 16, "seconds": 402, "notes": [], "dry": False,
        "warm_start": gpu_page.fingerprint(), "rows": rows,
    }  # fmt: skip
    return {**whole, **changes}


def test_table_escapes_bars_and_newlines() -> None:
    rows = [row_of("nvml", result="failed", figures={"took_s": 0.81234}, reason="a | b\nc")]
    table = gpu_page.format_table(result(rows=rows))
    assert table.splitlines()[-1] == "| nvml | n | ✗ failed | took s 0.812; a / b c |"


def without(name: str, *more: dict[str, Any]) -> dict[str, Any]:
    return {"rows": [*(row for row in result()["rows"] if row["name"] != name), *more]}


@pytest.mark.parametrize(
    "changes",
    [
        {"dry": True},
        {"warm_start": "of other code"},
        *map(without, gpu_page.NEEDED),
        *(without(name, {"name": name, "result": "failed"}) for name in gpu_page.NEEDED),
    ],
)
def test_evidence_incomplete_is_none(changes: dict[str, Any]) -> None:
    """A dry run, other code, or a row that failed or is missing."""
    assert gpu_page.warm_start_evidence(result()).startswith("NVIDIA H100, driver 580.1")
    assert gpu_page.warm_start_evidence(result(**changes)) == ""


def test_checks_that_ran_again_replace_their_rows() -> None:
    def rows(**results: str) -> list[dict[str, Any]]:
        return [row_of(check, result=found) for check, found in results.items()]

    whole = result(rows=rows(nvml="passed", faults="failed", kernels="passed"), complete=True)
    again = result(rows=rows(faults="passed"), complete=False, day="2026-11-24", commit="def5678")
    both = gpu_page.merged(whole, again)
    assert both["rows"] == rows(nvml="passed", faults="passed", kernels="passed")
    assert "- Run again on 2026-11-24 at commit def5678: faults." in gpu_page.format_table(both)
    assert gpu_page.merged(both, whole) == whole
    for former, other in (
        (None, again),
        (whole, {**again, "gpu": "NVIDIA A100"}),
        (whole, {**again, "warm_start": "of other code"}),
        (whole, {**whole, "dry": True}),
    ):
        with pytest.raises(ValueError, match=r"published|another"):
            gpu_page.merged(former, other)


def test_default_with_driver_follows_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_evidence.is_tested("")
    for passed in ("", "NVIDIA H100"):
        monkeypatch.setattr(gpu_evidence, "PASSED", passed)
        assert gpu_evidence.is_tested("/dev/nvidiactl") == bool(passed)


@pytest.mark.check
def test_published_files_are_current() -> None:
    """After a change of warm start, or a run on a GPU: `python -m tests.gpu.gpu_page`."""
    for path, text in gpu_page.outputs().items():
        assert path.read_text() == text, path
