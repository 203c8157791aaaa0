"""`holdfast doctor` as a person uses it, also where something is wrong with the machine."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast import __version__
from holdfast.doctor import table
from holdfast.doctor.finding import VERDICTS, Finding, note, ok, problem, worst
from holdfast.doctor.looks_in_time import Looks, Unseen
from holdfast.fault_tolerance.launcher.ranks import stale
from holdfast.in_time import UnderWay
from tests.doctor import made_worse
from tests.processes import Spawned, Spawner, alive, wait_until

DOCTOR = [sys.executable, "-m", "holdfast", "doctor"]
WORSE = str(Path(made_worse.__file__))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"

Findings = Mapping[str, Mapping[str, str]]


def ended(spawn: Spawner, *arguments: str, **how: Any) -> Spawned:
    process = spawn([*DOCTOR, *arguments], **how)
    process.wait()
    return process


def findings(process: Spawned) -> Findings:
    """By check, of a --json."""
    process.wait()
    if process.returncode == made_worse.CANNOT:
        pytest.skip(f"this needs root, or a system that allows it: {process.err().strip()}")
    told = json.loads(process.out())
    assert process.returncode == (told["verdict"] == "problem"), process.err()
    return {each["check"]: each for each in told["findings"]}


@pytest.fixture
def worse(spawn: Spawner) -> Callable[..., Findings]:
    """The findings where `how` is wrong."""

    def look(how: Callable[[], None], *arguments: str) -> Findings:
        command = [sys.executable, WORSE, how.__name__, *DOCTOR, "--json", *arguments]
        return findings(spawn(command))

    return look


def test_one_line_for_each_check_and_a_summary(spawn: Spawner) -> None:
    process = ended(spawn)
    *lines, summary = process.out().splitlines()
    verdicts = [line.split()[0] for line in lines]
    assert set(verdicts) <= set(VERDICTS)
    assert process.returncode == ("problem" in verdicts)
    assert process.err() == ""
    assert summary.endswith(f" in {len(lines)} checks")
    for line, verdict in zip(lines, verdicts, strict=True):
        assert (". To do: " in line) == (verdict != "ok"), line


def test_json_says_the_same_and_the_page_names_every_check(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    process = spawn(
        [*DOCTOR, "--json", "--nproc-per-node=2", "train.py", "--json", "--lr", "3"], cwd=tmp_path
    )
    told = findings(process)
    whole = json.loads(process.out())
    assert (whole["holdfast"], whole["nproc_per_node"], whole["script"]) == (__version__, 2, "train.py")
    assert whole["verdict"] in VERDICTS
    assert told["script"]["what"] == "train.py: torch imported ahead once a job has learned it"
    section = PAGE.read_text().partition("## What is looked at")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    not_always = {"interfaces", "trial"}  # only where a variable names one; only where it is asked for
    assert [name for name in rows if name not in not_always] == list(told)
    assert not_always < set(rows)


def test_help(spawn: Spawner) -> None:
    process = spawn([sys.executable, "-m", "holdfast", "--help"])
    assert process.wait() == 0
    assert re.search(r"^ +doctor +say whether this machine", process.out(), re.MULTILINE)
    process = ended(spawn, "--help")
    assert process.returncode == 0
    assert "exit codes: 0 no problem was found; 1 at least one; 2 wrong options" in process.out()


def test_nothing_is_made_and_nothing_is_left(spawn: Spawner, tmp_path: Path) -> None:
    state = tmp_path / "state"
    told = findings(spawn([*DOCTOR, "--json"], env={"XDG_STATE_HOME": str(state)}))
    assert told["run directory"]["verdict"] == "ok"
    assert told["old runs"]["what"].startswith("none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--nproc"], "unrecognized arguments: --nproc"),
        (["--jsno", "train.py"], "unrecognized arguments: --jsno"),
        (["--nproc-per-node"], "expected one argument"),
        (
            ["--nproc-per-node", "0"],
            "--nproc-per-node 0: give a number of ranks from 1 to 10000, or auto, cpu or gpu",
        ),
        (["--nproc-per-node=10001"], "give a number of ranks from 1 to 10000"),
        (["--nproc-per-node=-1"], "give a number of ranks from 1"),
        (["--nproc-per-node", "two"], "--nproc-per-node two: give a number"),
        (["-m"], "-m needs the name of a module"),
        (["-m", "no_such_module"], "there is no module 'no_such_module' to run with -m"),
        (["tarin.py"], "there is no training script 'tarin.py' in {here}; did you mean 'train.py'?"),
        (["--run-dir", " ", "train.py"], "--run-dir is empty"),
    ],
)
def test_wrong_command_lines(spawn: Spawner, tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "train.py").touch()
    process = spawn([*DOCTOR, *arguments], cwd=tmp_path)
    assert process.wait() == 2
    assert process.out() == ""
    (line,) = process.err().splitlines()
    assert line.startswith("holdfast")
    assert told.format(here=tmp_path) in line


def test_a_current_folder_that_is_gone(spawn: Spawner, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = 'rmdir "$PWD"; "$@"'
    process = spawn(["sh", "-c", shell, "sh", *DOCTOR, "train.py"], cwd=gone)
    assert process.wait() == 2
    assert process.err() == "holdfast: error: the current folder is gone; go to another one\n"
    gone.mkdir()
    assert "loopback port" in findings(spawn(["sh", "-c", shell, "sh", *DOCTOR, "--json"], cwd=gone))


def test_a_module_and_the_current_folder(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import no_such_module_a\n")
    (tmp_path / "random.py").write_text("raise SystemExit('imported')\n")
    process = spawn([*DOCTOR, "--json", "-m", "app", "--more"], cwd=tmp_path)
    told = findings(process)
    assert told["missing modules"]["what"] == "not found: no_such_module_a (app/__main__.py:1)"
    assert str(tmp_path / "random.py") in told["shadowed modules"]["what"]
    assert "random beside the script hides the installed one" in told["warm start"]["what"]
    assert process.returncode == 1


def test_another_python_for_the_ranks(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    script = str(tmp_path / "train.py")
    told = findings(spawn([*DOCTOR, "--json", script], env={"PYTHON_EXEC": "/no/such/python"}))
    assert told["python"]["verdict"] == "problem"
    assert "not looked at" in told["script"]["what"]
    assert told["warm start"]["verdict"] == "note"


def test_a_chosen_run_directory(spawn: Spawner, tmp_path: Path) -> None:
    told = findings(spawn([*DOCTOR, "--json", "--run-dir", str(tmp_path / "new")]))
    assert told["run directory"]["what"].startswith(f"{tmp_path / 'new'}: writable")
    (tmp_path / "file").touch()
    told = findings(spawn([*DOCTOR, "--json", "--run-dir", str(tmp_path / "file")]))
    assert told["run directory"]["verdict"] == "problem"
    assert "is not a directory" in told["run directory"]["what"]


def test_surroundings_that_a_variable_spoils(spawn: Spawner) -> None:
    env = {"HOME": "/nonexistent", "XDG_STATE_HOME": None, "GLOO_SOCKET_IFNAME": "eth-none", "LC_ALL": "C"}
    told = findings(spawn([*DOCTOR, "--json"], env=env))
    assert "there is no home folder /nonexistent; journals go to" in told["run directory"]["what"]
    assert "GLOO_SOCKET_IFNAME=eth-none: there is no eth-none here" in told["interfaces"]["what"]


def test_a_folder_whose_name_no_terminal_can_show(spawn: Spawner, tmp_path: Path) -> None:
    folder = tmp_path / "übung\x1b[31m\n"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "random.py").touch()
    process = spawn([*DOCTOR, "train.py"], cwd=folder, env={"PYTHONIOENCODING": "ascii"})
    assert process.wait() == 1
    assert "\\xfcbung\\x1b[31m\\n/random.py" in process.out()


def test_output_that_cannot_be_written(spawn: Spawner) -> None:
    process = spawn(["sh", "-c", '"$@" > /dev/full', "sh", *DOCTOR])
    assert process.wait() == 2
    assert process.err() == "holdfast: error: standard output: No space left on device; the result is lost\n"


# Machines on which something is wrong


def test_tight_limits(spawn: Spawner) -> None:
    process = spawn(["sh", "-c", 'ulimit -n 70; "$@"', "sh", *DOCTOR, "--json", "--nproc-per-node", "4"])
    told = findings(process)["open files"]
    assert told["verdict"] == "problem"
    assert "70 for each process (RLIMIT_NOFILE): too few for the launcher of 4 ranks" in told["what"]


def test_a_loopback_that_is_down(worse: Callable[..., Findings]) -> None:
    told = worse(made_worse.without_network)
    assert told["loopback port"]["verdict"] == "problem"
    assert "Network is unreachable" in told["loopback port"]["what"]


def test_shared_memory_that_cannot_be_written(worse: Callable[..., Findings]) -> None:
    told = worse(made_worse.without_shm)["shared memory"]
    assert told["verdict"] == "problem"
    assert told["what"].startswith("/dev/shm: Read-only file system.")


def test_no_proc(worse: Callable[..., Findings]) -> None:
    told = worse(made_worse.without_proc)
    assert told["kernel"]["verdict"] == "problem"
    assert "/proc: hung ranks" in told["kernel"]["what"]


def test_calls_that_a_sandbox_refuses(worse: Callable[..., Findings]) -> None:
    told = worse(made_worse.without_calls)
    assert told["kernel"]["verdict"] == "problem"
    assert "process handles (pidfd)" in told["kernel"]["what"]
    assert "subreaper" not in told["kernel"]["what"].lower()
    assert told["ptrace"]["verdict"] == "note"
    assert "(Operation not permitted)" in told["ptrace"]["what"]
    assert "the kernel lacks pidfd" in told["warm start"]["what"]


def test_a_small_container(worse: Callable[..., Findings]) -> None:
    told = worse(made_worse.small_container, "--nproc-per-node=2")
    assert told["processes"]["verdict"] == "problem"
    assert re.search(r"\(cgroup pids.max: \d+ of 30\): too few", told["processes"]["what"])
    assert told["memory"]["verdict"] == "note"
    assert re.search(r"by cgroup memory\.\w+, [\d.]+ MiB of 700.0 MiB", told["memory"]["what"])
    if len(os.sched_getaffinity(0)) > 1:
        assert told["processors"]["what"].startswith("1.5 usable (cgroup quota;")


def test_a_name_server_that_never_answers(worse: Callable[..., Findings]) -> None:
    began = time.monotonic()
    told = worse(made_worse.deaf_resolver)["host name"]
    assert told["verdict"] == "note"
    assert "'gpu-1.example.com' does not resolve (no answer within 1 s)" in told["what"]
    assert time.monotonic() - began < 20  # else the resolver's 30 s and more


ORPHANING = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
os.write(1, f"left {child.pid}, board {os.environ['FT_RANK_MONITOR_IPC_SOCKET']}\\n".encode())
child.wait()
"""


def test_what_dead_and_living_jobs_have_here(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ORPHANING)
    job = spawn([sys.executable, "-m", "holdfast.fault_tolerance.launcher", str(tmp_path / "train.py")])
    found = job.wait_for(r"^left (\d+), board (\S+)")
    assert isinstance(found, re.Match)
    left, boards = int(found[1]), str(Path(found[2]).parents[1])

    living = findings(spawn([*DOCTOR, "--json"]))
    assert f"{left} (" not in living["orphaned ranks"]["what"]
    os.rename(f"{boards}/owner", f"{boards}/away")  # somebody has cleaned /dev/shm up
    living = findings(spawn([*DOCTOR, "--json"]))
    assert f"{left} (" not in living["orphaned ranks"]["what"]
    os.rename(f"{boards}/away", f"{boards}/owner")
    living = findings(spawn([*DOCTOR, "--json"]))
    assert boards not in living["dead jobs' boards"]["what"]
    assert not re.search(r"\b0 jobs", living["dead jobs' boards"]["what"])

    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    killed = [process for process in family if process.pid != left]
    for process in killed:
        process.suspend()  # so that none sees another one die
    for process in killed:
        process.kill()
    job.wait()
    wait_until(lambda: not any(alive(process.pid) for process in killed))
    process = spawn([*DOCTOR, "--json"])
    dead = findings(process)
    assert process.returncode == 1
    assert f"{left} (sleep 600)" in dead["orphaned ranks"]["what"]
    # What is there still was there before; another launcher on this machine may have swept it.
    assert boards in dead["dead jobs' boards"]["what"] or not Path(boards).exists()

    psutil.Process(left).kill()
    wait_until(lambda: not alive(left))
    assert f"{left} (" not in findings(spawn([*DOCTOR, "--json"]))["orphaned ranks"]["what"]
    stale.sweep(os.path.dirname(boards))
    assert not Path(boards).exists()


# What does not answer, and how it is told


def test_a_look_that_hangs_or_fails_costs_its_own_line_only() -> None:
    gate, open_gate = os.pipe()

    def fails() -> None:
        raise PermissionError(13, "Permission denied")

    looks = Looks({"hangs": lambda: os.read(gate, 1), "fails": fails, "works": lambda: 7}, patience=0.3)
    assert looks["works"] == 7
    with pytest.raises(Unseen, match=r"^Permission denied$"):
        looks["fails"]
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(Unseen, match=r"^no answer within 0.3 s$"):
            looks["hangs"]
    assert time.monotonic() - began < 5
    os.close(open_gate)
    begun = looks._begun["hangs"]
    assert isinstance(begun, UnderWay)
    assert begun.answer(10) == b""
    os.close(gate)


@pytest.mark.parametrize(
    ("told", "summary", "bad"),
    [
        ([ok("a", "fine")], "nothing wrong in 1 check", "ok"),
        ([ok("a", "fine"), note("b", "hm", "do")], "1 note in 2 checks", "note"),
        ([problem("a", "bad", "do"), note("b", "hm", "do")], "1 problem and 1 note in 2 checks", "problem"),
    ],
)
def test_the_summary(told: list[Finding], summary: str, bad: str) -> None:
    assert table.report(told).splitlines()[-1] == summary
    assert worst(told) == bad


def test_a_line_is_one_line() -> None:
    lines = table.report([problem("check", "a\nb\x1b[0m", "do\rthis")]).splitlines()
    assert lines[0] == "problem  check  a\\nb\\x1b[0m. To do: do\\rthis"
    assert len(lines) == 2
