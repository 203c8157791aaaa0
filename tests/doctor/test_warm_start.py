"""Whether warm start will work: as values, and of real interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.doctor.finding import NOTE, OK, PROBLEM
from holdfast.doctor.judgements import warm_start
from holdfast.doctor.judgements.warm_start import Interpreter, Refused
from holdfast.doctor.looks import interpreter, journals
from holdfast.journal.event import encode
from holdfast.journal.writer import file_name

OWN = Interpreter("/venv/bin/python", (3, 11, 7), "/venv", "2.13.0+cpu")
OTHER = Interpreter("/usr/bin/python3", (3, 12, 1), "/usr", "2.13.0")


def test_one_python_with_the_tested_torch() -> None:
    assert warm_start.python(OWN, OWN).what == "3.11.7 (/venv/bin/python)"
    assert warm_start.torch(OWN).verdict == OK
    assert warm_start.warm_start(OWN, OWN, "", [], []).verdict == OK


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
        ("2.14.0", NOTE),
        ("3.0", NOTE),
        ("2.12.0+cu130", PROBLEM),
        ("2.9.1", PROBLEM),
        ("2.13.0a0+gitabc", OK),
        ("", PROBLEM),
    ],
)
def test_torch_versions(version: str, verdict: str) -> None:
    assert warm_start.torch(replace(OWN, torch=version)).verdict == verdict


@pytest.mark.parametrize(
    ("ranks", "driver", "kernel", "shadowing", "why"),
    [
        (OTHER, "", [], [], "PYTHON_EXEC names another Python"),
        (OWN, "/dev/nvidiactl", [], [], "with an NVIDIA driver auto stays cold"),
        (OWN, "", ["pidfd"], [], "the kernel lacks pidfd"),
        (OWN, "", [], ["random"], "random beside the script hides a module that torch needs"),
        (replace(OWN, torch=""), "", [], [], "there is no torch to import ahead"),
        (replace(OWN, error="it is no Python"), "", [], [], "there is no torch to import ahead"),
    ],
)
def test_why_it_stays_cold(
    ranks: Interpreter, driver: str, kernel: list[str], shadowing: list[str], why: str
) -> None:
    judged = warm_start.warm_start(OWN, ranks, driver, kernel, shadowing)
    assert judged.verdict == NOTE
    assert why in judged.what
    assert judged.advice


def test_all_reasons_are_told_at_once() -> None:
    judged = warm_start.warm_start(OWN, OTHER, "/dev/nvidiactl", ["pidfd"], ["random"])
    assert judged.what.count(";") == 3


def test_modules_that_were_refused() -> None:
    assert warm_start.refused([], "").verdict == OK
    judged = warm_start.refused([Refused("grpc", "it starts 2 threads")], "/runs/a")
    assert judged.verdict == NOTE
    assert (
        "1 module cannot be imported ahead: grpc (it starts 2 threads); each rank imports it" in judged.what
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


def test_refused_modules_come_from_the_newest_journal_or_the_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import socket

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for age, module in ((100, "old"), (0, "grpc")):
        run = tmp_path / "holdfast" / module
        run.mkdir(parents=True)
        lines = [
            encode("module_refused", {"module": module, "reason": "threads"}, t=1, mono=1, node="a"),
            encode("rank_exit", {"text": "module_refused"}, t=1, mono=1, node="a"),
            b"torn module_refused",
        ]
        path = run / file_name(socket.gethostname())
        path.write_bytes(b"".join(lines))
        os.utime(path, (time.time() - age,) * 2)
    assert journals.refused() == ([Refused("grpc", "threads")], str(tmp_path / "holdfast" / "grpc"))
    old = str(tmp_path / "holdfast" / "old")
    assert journals.refused(old) == ([Refused("old", "threads")], old)
    assert journals.refused(str(tmp_path)) == ([], "")


def test_torch_is_not_imported() -> None:
    code = (
        "import json, sys\nfrom holdfast.cli import main\nmain(['doctor', '--json'])\n"
        "print(json.dumps([name for name in ('torch', 'numpy', 'yaml') if name in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stderr) == []
