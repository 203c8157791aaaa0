"""`make gpu` without a GPU: every check on the CPU with stand-ins, installing without network, and what is told."""

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

from tests.gpu import check, environment, page
from tests.processes import Spawner
from tests.straggler.kernels.conftest import NAMES, build_fakes, build_nvml

COMMAND = [sys.executable, "-m", "tests.gpu"]
# Whether a step costs 0.3 % more can only be told on a GPU.
NOT_JUDGED = {"cost of a 10 ms step with 300 kernels", "cost of a 100 ms step with 300 kernels"}
SMI = """#!/bin/sh
case "$*" in
*compute-apps*) ;;
*memory.used*) echo 512 ;;
*driver_version*) echo 1.2.3 ;;
*clocks.max.sm*) echo "1980, 700.00, 88, 1200" ;;
*) echo "0, Stand-in, 0, No, Not Active, Not Active, Not Active, 88" ;;
esac
"""
RESULT: dict[str, Any] = {
    "gpu": "NVIDIA H100", "driver": "580.1", "torch": "2.11.0", "cuda": "13.0", "python": "3.12.3",
    "day": "2026-11-23", "holdfast": "abc1234", "cores": 16, "seconds": 402, "notes": ["rich is missing"],
    "warm_start": page.fingerprint(),
    "rows": [
        {"check": "Restart", "name": "a", "result": "passed", "figures": {"warm_s": 0.81234, "ratio": 0.1}, "said": ""},
        {"check": "Warm start is safe", "name": "b", "result": "passed", "figures": {"of": "2 of 2"}, "said": ""},
        {"check": "NVML", "name": "c", "result": "failed", "figures": {}, "said": "clock | 1\nof 2"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables that put a driver, CUPTI, NVML and nvidia-smi of ours in the place of NVIDIA's."""
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
        check.DEVICE: "cpu",
    }


@pytest.mark.slow
def test_every_check_runs_dry(spawn: Spawner, stand_ins: dict[str, str], tmp_path: Path) -> None:
    job = spawn([*COMMAND, "--out", tmp_path], env={"TMPDIR": str(tmp_path), **stand_ins}, cwd=check.ROOT)
    code = job.wait(170)
    result = json.loads((tmp_path / "gpu.json").read_text())
    judged = [row for row in result["rows"] if row["name"] not in NOT_JUDGED]
    bad = [row for row in judged if row["result"] in (check.FAILED, check.NOT_REACHED)]
    assert not bad, f"{bad}\n{(tmp_path / 'gpu.log').read_text()[-8000:]}"
    assert [row["name"] for row in result["rows"]] == [name for each in check.checks() for name in each.rows]
    assert code == any(row["result"] == check.FAILED for row in result["rows"])
    assert (tmp_path / "gpu.md").read_text() == page.table(result) + "\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"gpu.json", "gpu.md", "gpu.log"}, (
        "its logs are removed"
    )


def test_without_a_gpu_it_is_one_sentence_and_code_2(spawn: Spawner) -> None:
    job = spawn(COMMAND, env={check.DEVICE: None}, cwd=check.ROOT)
    assert job.wait() == 2
    assert job.output() == "make gpu: there is no NVIDIA driver on this machine, so nothing can be tried.\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["hang"], "there is no check hang; --list names them"),
        (["--wheels", "/nowhere"], "--wheels /nowhere: there is no such folder"),
    ],
)
def test_wrong_words_are_one_sentence_and_code_2(spawn: Spawner, words: list[str], why: str) -> None:
    job = spawn([*COMMAND, *words], cwd=check.ROOT)
    assert (job.wait(), job.output()) == (2, f"make gpu: {why}.\n")


def test_a_python_without_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(check.DEVICE, "cpu")
    from tests.gpu.__main__ import look

    found = look()
    assert isinstance(found, str)
    assert found.endswith("(ImportError: libcudart is missing): choose one with make gpu PYTHON=...")


@pytest.mark.slow
def test_the_tree_is_installed_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler, too: that is said, and the rest works."""
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("CXX", "false")
    python, notes = environment.install(tmp_path, None)
    assert [note.partition(":")[0] for note in notes] == [
        f"{name} was not built" for name in environment.CORES
    ]
    look = "import holdfast, torch, importlib.metadata as m; print(holdfast.__file__, m.version('holdfast'))"
    done = subprocess.run([python, "-c", look], env={}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path))
    assert not (Path(torch_folder()) / "holdfast").exists(), "nothing is written through the links"


def torch_folder() -> str:
    """Where packages of this Python are."""
    return str(Path(pytest.__file__).parents[1])


BREAKS = """
import subprocess, sys, time
from tests.gpu.check import Check, row

def function(place):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield row("a", True)
    {ends}

CHECKS = [Check("one", "One", 2, ("a", "b", "c"), function)]
"""


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ("raise ValueError('broken')", "the check ended with 1: ValueError: broken"),
        ("time.sleep(600)", "its time limit of 2 s was over"),
    ],
)
def test_every_row_has_a_result_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, first: str
) -> None:
    """Of a check that breaks after its first row, or does not end, and leaves a process behind."""
    (tmp_path / "check_that_breaks.py").write_text(BREAKS.format(ends=ends))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (one,) = import_module("check_that_breaks").CHECKS
    rows = check.run(one, tmp_path / "work", one.seconds)
    assert [(row.name, row.result) for row in rows] == [
        ("a", "passed"),
        ("b", "failed"),
        ("c", "not reached"),
    ]
    assert rows[1].said == first
    assert not check.marked(f"{os.getpid()}-one")


def test_a_result_is_told() -> None:
    assert page.table(RESULT) == (
        "NVIDIA H100, driver 580.1, torch 2.11.0 (CUDA 13.0), Python 3.12.3, 2026-11-23, commit abc1234; 16 cores, "
        "402 s in all.\n\n- rich is missing\n\n"
        "| check | what | result | figures |\n|---|---|---|---|\n"
        "| Restart | a | ✓ | warm s 0.812; ratio 0.1 |\n"
        "| Warm start is safe | b | ✓ | of 2 of 2 |\n"
        "| NVML | c | ✗ failed | clock / 1 of 2 |"
    )
    assert "2 of 3 [GPU checks](docs/gpu.md) have passed on NVIDIA H100" in page.readme(RESULT)
    assert "warm start there is on by default" in page.readme(RESULT)


def test_warm_start_has_passed_only_for_the_code_that_was_measured() -> None:
    assert page.passed(None) == ""
    assert page.passed(RESULT).startswith("NVIDIA H100, driver 580.1")
    assert page.passed({**RESULT, "warm_start": "of other code"}) == ""
    for index in (0, 1):
        rows = [dict(row) for row in RESULT["rows"]]
        rows[index]["result"] = check.NOT_REACHED
        assert page.passed({**RESULT, "rows": rows}) == ""
        assert page.passed({**RESULT, "rows": rows[:index] + rows[index + 1 :]}) == ""


@pytest.mark.parametrize("path", list(page.outputs()), ids=lambda path: path.name)
def test_pages_and_the_default_are_those_of_the_last_run(path: Path) -> None:
    """After a change of warm start, or a run on a GPU: `python -m tests.gpu.page`."""
    assert path.read_text() == page.outputs()[path]
