"""Whether warm start will work: as values, and of real interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.doctor.finding import NOTE, OK, PROBLEM
from holdfast.doctor.judgements import warm_start
from holdfast.doctor.judgements.warm_start import Interpreter
from holdfast.doctor.looks import interpreter, lists
from holdfast.fault_tolerance.launcher.warm import learned

OWN = Interpreter("/venv/bin/python", (3, 11, 7), "/venv", "2.13.0+cpu")
OTHER = Interpreter("/usr/bin/python3", (3, 12, 1), "/usr", "2.13.0")


def test_one_python_with_the_tested_torch() -> None:
    assert warm_start.python(OWN, OWN).what == "3.11.7 (/venv/bin/python)"
    assert warm_start.torch(OWN).verdict == OK
    assert warm_start.warm_start(OWN, "").verdict == OK


def test_a_python_that_is_too_old() -> None:
    judged = warm_start.python(OWN, replace(OTHER, version=(3, 9, 18)))
    assert judged.verdict == PROBLEM
    assert judged.what == "PYTHON_EXEC=/usr/bin/python3 is Python 3.9.18, older than 3.10"


def test_another_path_to_the_same_python_is_the_same() -> None:
    assert warm_start.same(OWN, replace(OWN, executable="/venv/bin/python3.11"))
    assert not warm_start.same(OWN, OTHER)


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("2.13.1", OK),
        ("2.8.0", OK),
        ("2.15.0", OK),
        ("2.16.0", NOTE),
        ("3.0", NOTE),
        ("2.7.1+cu130", PROBLEM),
        ("2.13.0a0+gitabc", OK),
        ("", PROBLEM),
    ],
)
def test_torch_versions(version: str, verdict: str) -> None:
    assert warm_start.torch(replace(OWN, torch=version)).verdict == verdict


@pytest.mark.parametrize(
    ("ranks", "cold", "kernel", "hiding", "why"),
    [
        (
            OWN,
            "the machine has an NVIDIA driver",
            [],
            [],
            "ranks start cold: the machine has an NVIDIA driver",
        ),
        (OWN, "", ["pidfd"], [], "the kernel lacks pidfd"),
        (OWN, "", [], ["random"], "random beside the script hides the installed one"),
        (replace(OWN, torch=""), "", [], [], "there is no torch to import ahead"),
        (replace(OWN, error="it is no Python"), "", [], [], "there is no torch to import ahead"),
    ],
)
def test_why_it_stays_cold(
    ranks: Interpreter, cold: str, kernel: list[str], hiding: list[str], why: str
) -> None:
    judged = warm_start.warm_start(ranks, cold, kernel, hiding)
    assert judged.verdict == NOTE
    assert why in judged.what
    assert judged.advice


def test_all_reasons_are_told_at_once() -> None:
    assert warm_start.warm_start(OWN, "a", ["pidfd"], ["random"]).what.count(";") == 2


def test_packages_that_were_refused() -> None:
    assert warm_start.refused({}, "/runs/preload").verdict == OK
    assert "no place" in warm_start.refused({}, "").what
    judged = warm_start.refused({"grpc": "grpc._cython: it starts a thread"}, "/runs/preload")
    assert judged.verdict == NOTE
    assert judged.what == (
        "1 package cannot be imported ahead: grpc (grpc._cython: it starts a thread); each rank imports it itself"
    )


# Real ones


def test_ranks_run_with_this_python_unless_told_otherwise(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    own = interpreter.own()
    assert interpreter.of_ranks({}) == own
    for path in (sys.executable, str(wrapper)):
        assert warm_start.same(own, interpreter.of_ranks({"PYTHON_EXEC": path}))


def test_another_python_is_asked_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (tmp_path / "json.py").write_text("raise SystemExit('a file in the current folder was imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH")
    found = interpreter.of_ranks({"PYTHON_EXEC": str(tmp_path / "venv" / "bin" / "python")})
    assert (found.error, found.prefix, found.torch) == ("", str(tmp_path / "venv"), "")
    assert warm_start.python(interpreter.own(), found).verdict == NOTE


@pytest.mark.parametrize(
    ("program", "error"), [("/no/such/python", "there is no such program"), ("ls", "it is no Python")]
)
def test_what_is_no_python(program: str, error: str) -> None:
    found = interpreter.of_ranks({"PYTHON_EXEC": program})
    assert found.error == error
    assert warm_start.python(interpreter.own(), found).verdict == PROBLEM


def test_the_lists_that_launchers_have_kept(tmp_path: Path) -> None:
    assert lists.of_all(str(tmp_path)) == lists.Kept(str(tmp_path / "preload"))
    first, second = (str(tmp_path / name) for name in ("a.py", "b.py"))
    found = [("torch", None), ("numpy.linalg", "/site-packages/numpy/linalg/__init__.py")]
    for script, modules, refused in (
        (first, found, {"grpc": "threads"}),
        (second, None, {"wandb": "a process"}),
    ):
        learned.write(learned.path(str(tmp_path), script, module=False), learned.Learned(modules, refused))
    kept = lists.of_script(str(tmp_path), first, module=False)
    assert (kept.modules, kept.packages, kept.refused) == (2, {"torch", "numpy"}, {"grpc": "threads"})
    assert lists.of_script(str(tmp_path), second, module=False).modules is None
    assert lists.of_script(str(tmp_path), first, module=True).modules is None
    assert lists.of_all(str(tmp_path)).refused == {"grpc": "threads", "wandb": "a process"}


def test_torch_is_not_imported() -> None:
    code = (
        "import json, sys\nfrom holdfast.cli import main\nmain(['doctor', '--json'])\n"
        "print(json.dumps([name for name in ('torch', 'numpy', 'yaml') if name in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stderr) == []
