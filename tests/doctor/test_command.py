"""`holdfast doctor` as a person uses it, also where something is wrong with the machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast import __version__
from holdfast.cli.main import main
from holdfast.doctor.table import VERDICTS
from holdfast.fault_tolerance.launcher.ranks import boards as rank_boards
from scripts.doctor_checks import CHECKS
from tests.doctor import made_worse
from tests.processes import Spawned, Spawner, alive, wait_until

DOCTOR = [sys.executable, "-m", "holdfast", "doctor"]

Findings = Mapping[str, Mapping[str, str]]


def looked(spawn: Spawner, command: Sequence[str], **how: Any) -> tuple[Spawned, Findings]:
    """A --json that has ended, and its findings by check; once more where a check had no core in the time for all."""

    def look() -> tuple[Spawned, Findings] | None:
        process = spawn(command, **how)
        process.wait()
        if process.returncode == made_worse.CANNOT:
            pytest.skip(f"this needs root, or a system that allows it: {process.err().strip()}")
        told = json.loads(process.out())
        assert process.returncode == (told["verdict"] == "problem"), process.err()
        found = {each["check"]: each for each in told["findings"]}
        is_late = any(each["what"].startswith("not checked: no answer within") for each in found.values())
        return None if is_late else (process, found)

    return wait_until(look)


def findings(spawn: Spawner, command: Sequence[str], **how: Any) -> Findings:
    return looked(spawn, command, **how)[1]


def test_one_line_for_each_check_and_a_summary(spawn: Spawner) -> None:
    """Without torch."""
    code = "import sys; from holdfast.cli import main; code = main(['doctor']); "
    code += "print({'torch', 'numpy', 'yaml'} & set(sys.modules), file=sys.stderr); sys.exit(code)"
    process = spawn.python(code)
    process.wait()
    *lines, summary = process.out().splitlines()
    verdicts = [line.split()[0] for line in lines]
    assert set(verdicts) <= set(VERDICTS)
    assert process.returncode == ("problem" in verdicts)
    assert process.err() == "set()\n"
    assert summary.endswith(f" in {len(lines)} checks")


def test_json_has_every_check_of_the_table_and_nothing_is_left(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    command = [*DOCTOR, "--json", "--nproc-per-node=2", "train.py", "--json", "--lr", "3"]
    process, told = looked(spawn, command, cwd=tmp_path, env={"XDG_STATE_HOME": str(tmp_path / "state")})
    whole = json.loads(process.out())
    assert (whole["holdfast"], whole["nproc_per_node"], whole["script"]) == (__version__, 2, "train.py")
    assert whole["verdict"] in VERDICTS
    assert all(bool(each["advice"]) == (each["verdict"] != "ok") for each in told.values())
    not_always = {"interfaces", "import names", "command", "trial"}
    assert [name for name in CHECKS if name not in not_always] == list(told)
    assert not_always < set(CHECKS)
    assert told["run directory"]["verdict"] == "ok"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nproc"], "unrecognized arguments: --nproc"),
        (["--jsno", "train.py"], "unrecognized arguments: --jsno"),
        (["--nproc-per-node"], "expected one argument"),
        (["--nproc-per-node", "0"], "--nproc-per-node 0: give a number of ranks from 1 to 10000"),
        (["--nproc-per-node=10001"], "give a number of ranks from 1 to 10000, or auto, cpu or gpu"),
        (["--nproc-per-node=-1"], "give a number of ranks from 1"),
        (["--nproc-per-node", "two"], "--nproc-per-node two: give a number"),
        (["-m"], "-m needs the name of a module"),
        (["-m", "no_such_module"], "there is no module 'no_such_module' to run with -m"),
        (["tarin.py"], "there is no training script 'tarin.py' in {here}; did you mean 'train.py'?"),
        (["--run-dir", " ", "train.py"], "--run-dir is empty"),
        (["--trial"], "--trial needs a script"),
    ],
)
def test_wrong_command_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Any, told: str
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(["doctor", *words]))
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (ended.value.code, out) == (2, "")
    assert line.startswith("holdfast") and told.format(here=tmp_path) in line


def test_a_current_folder_that_is_gone(spawn: Spawner, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = 'rmdir "$PWD"; "$@"'
    process = spawn(["sh", "-c", shell, "sh", *DOCTOR, "train.py"], cwd=gone)
    assert process.wait() == 2
    assert process.err() == "holdfast: error: the current folder is gone; go to another one\n"
    gone.mkdir()
    process = spawn(["sh", "-c", shell, "sh", *DOCTOR, "--json"], cwd=gone)
    assert process.wait() in (0, 1) and "loopback port" in process.out()


def test_files_in_the_current_folder_are_not_imported(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("raise SystemExit('run')\n")
    (tmp_path / "random.py").write_text("raise SystemExit('imported')\n")
    told = findings(spawn, [*DOCTOR, "--json", "-m", "app", "--more"], cwd=tmp_path)
    assert told["loopback port"]["verdict"] == "ok"


def test_python_exec_that_does_not_exist(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    command = [*DOCTOR, "--json", "--trial", str(tmp_path / "train.py")]
    told = findings(spawn, command, env={"PYTHON_EXEC": "/no/such/python"})
    assert told["python"]["verdict"] == "problem"
    assert "not made: PYTHON_EXEC names another Python" in told["trial"]["what"]
    assert told["warm start"]["verdict"] == "note"


GUARDED = "try:\n    import no_such_a\nexcept ImportError:\n    pass\n"
SCRIPTS = {
    "complete": (f"import yaml\nimport helper\n{GUARDED}open('it-ran', 'w').close()\n", "ok", "imported in "),
    "missing": ("import helper\nimport no_such_a\n", "problem", "imported: no_such_a (ModuleNotFound"),
    "broken": ("import (\n", "problem", "train.py, line 1: "),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_trial_imports_and_does_not_run_the_script(spawn: Spawner, tmp_path: Path, name: str) -> None:
    source, verdict, part = SCRIPTS[name]
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "helper.py").write_text("open('it-ran', 'w').close()\n")
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    command = [*DOCTOR, "--json", "--trial", "--nproc-per-node=2", "train.py"]
    process, found = looked(spawn, command, cwd=tmp_path, env=env)
    told = found["trial"]
    assert (told["verdict"], part in told["what"], process.err()) == (verdict, True, ""), told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["helper.py", "train.py"]


def test_trial_names_modules_that_start_threads(spawn: Spawner, tmp_path: Path) -> None:
    packages = tmp_path / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    (packages / "telemetry.py").write_text(thread)
    (tmp_path / "train.py").write_text("import telemetry\n")
    env = {"PYTHONUSERBASE": str(tmp_path), "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{packages}"}
    told = findings(spawn, [*DOCTOR, "--json", "--trial", str(tmp_path / "train.py")], env=env)["trial"]
    assert (told["verdict"], "not imported ahead: telemetry" in told["what"]) == ("note", True), told
    slower = "Restarts are slower because each rank imports telemetry itself"
    assert told["advice"] == f"No action needed. {slower}"


def test_surroundings_that_a_variable_spoils(spawn: Spawner) -> None:
    env = {"HOME": "/nonexistent", "XDG_STATE_HOME": None, "GLOO_SOCKET_IFNAME": "eth-none", "LC_ALL": "C"}
    told = findings(spawn, [*DOCTOR, "--json"], env=env)
    assert "there is no home folder /nonexistent; journals go to" in told["run directory"]["what"]
    assert "GLOO_SOCKET_IFNAME=eth-none: there is no eth-none on this machine" in told["interfaces"]["what"]


def test_names_do_nothing_to_a_terminal(spawn: Spawner, tmp_path: Path) -> None:
    folder = tmp_path / "übung\x1b[31m\n"
    folder.touch()
    process = spawn([*DOCTOR, "--run-dir", str(folder)], env={"PYTHONIOENCODING": "ascii"})
    assert process.wait() == 1
    assert "\\xfcbung\\x1b[31m\\n cannot be used: is not a directory" in process.out()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_run_directory_of_another_user(spawn: Spawner, tmp_path: Path) -> None:
    """As user 65534: the folder of root cannot be read, and every other check has its line."""
    private = tmp_path / "private"
    private.mkdir(0o700)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *DOCTOR, "--json"]
    env = {"HOME": "/nonexistent", "XDG_STATE_HOME": None, "TMPDIR": "/tmp"}
    told = findings(spawn, [*command, "--run-dir", str(private / "run")], env=env)
    assert told["run directory"]["verdict"] == "problem"
    assert "Permission denied" in told["run directory"]["what"]
    assert {"python", "shared memory", "processes", "kernel", "localhost", "orphaned ranks"} < told.keys()


# Machines on which something is wrong


def test_tight_limits(spawn: Spawner) -> None:
    command = ["sh", "-c", 'ulimit -n 70; "$@"', "sh", *DOCTOR, "--json", "--nproc-per-node", "4"]
    told = findings(spawn, command)["open files"]
    assert told["verdict"] == "problem"
    assert "70 for each process (RLIMIT_NOFILE): too few for the launcher of 4 ranks" in told["what"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("without_network", {"loopback port": ("problem", "Network is unreachable")}),
        ("without_shm", {"shared memory": ("problem", "^/dev/shm: Read-only file system;")}),
        ("without_proc", {"kernel": ("problem", "/proc: hung ranks")}),
        (
            "without_calls",
            {
                "kernel": (
                    "problem",
                    r"^missing: process handles \(pidfd\): [^(]*\(Function not implemented\)$",
                ),
                "ptrace": ("note", r"\(Operation not permitted\)"),
                "warm start": ("note", "see `kernel`"),
            },
        ),
        (
            "small_container",
            {
                "processes": ("problem", r"\(cgroup pids.max: \d+ of 30\): too few"),
                "memory": ("note", r"by cgroup memory\.\w+, [\d.]+ MiB of 700.0 MiB"),
            },
        ),
        (
            "deaf_resolver",
            {"host name": ("note", r"'gpu-1.example.com' does not resolve \(no answer within 1 s\)")},
        ),
    ],
)
def test_machine_that_is_made_worse(spawn: Spawner, how: str, expected: dict[str, tuple[str, str]]) -> None:
    command = [sys.executable, made_worse.__file__, how, *DOCTOR, "--json", "--nproc-per-node=2"]
    told = findings(spawn, command)
    for check, (verdict, what) in expected.items():
        assert told[check]["verdict"] == verdict and re.search(what, told[check]["what"]), told[check]


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

    living = findings(spawn, [*DOCTOR, "--json"])
    assert f"{left} (" not in living["orphaned ranks"]["what"]
    os.rename(f"{boards}/owner", f"{boards}/away")  # as if /dev/shm had been cleaned up
    living = findings(spawn, [*DOCTOR, "--json"])
    assert f"{left} (" not in living["orphaned ranks"]["what"]
    os.rename(f"{boards}/away", f"{boards}/owner")
    living = findings(spawn, [*DOCTOR, "--json"])
    assert boards not in living["dead jobs' boards"]["what"]
    assert "running jobs of this user: 0" not in living["dead jobs' boards"]["what"]

    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    killed = [process for process in family if process.pid != left]
    for deed in (psutil.Process.suspend, psutil.Process.kill):  # so that none sees another one die
        for each in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                deed(each)
    job.wait()
    wait_until(lambda: not any(alive(process.pid) for process in killed))
    process, dead = looked(spawn, [*DOCTOR, "--json"])
    assert process.returncode == 1
    assert f"{left} (sleep 600)" in dead["orphaned ranks"]["what"]
    # What is there still was there before; another launcher on this machine may have swept it.
    assert boards in dead["dead jobs' boards"]["what"] or not Path(boards).exists()

    psutil.Process(left).kill()
    wait_until(lambda: not alive(left))
    assert f"{left} (" not in findings(spawn, [*DOCTOR, "--json"])["orphaned ranks"]["what"]
    rank_boards.remove_stale(os.path.dirname(boards))
    assert not Path(boards).exists()
