"""A user's mistake through the real command: one clear line, exit code 2, nothing started, no run directory made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.launcher.conftest import Job, Jobs

YAML = {
    "list.yaml": "- 1\n- 2\n",
    "broken.yaml": "fault_tolerance: {a: [\n",
    "misspelt.yaml": "fault_tolerance:\n  rank_heartbeat_timout: 30\n",
    "wrong_type.yaml": "fault_tolerance:\n  rank_heartbeat_timeout: soon\n",
    "wrong_signal.yaml": "fault_tolerance:\n  rank_termination_signal: SIGFOO\n",
}

ROWS = {
    "no script": ([], ["no training script"]),
    "missing script": (["trian.py"], ["there is no training script 'trian.py'", "did you mean 'train.py'?"]),
    "folder": (["folder"], ["'folder' is a folder without a __main__.py"]),
    "no program": (["--no-python", "no-such-program"], ["there is no program 'no-such-program'"]),
    "missing yaml": (["--ft-cfg-path", "none.yaml", "train.py"], ["none.yaml"]),
    "unreadable yaml": (["--ft-cfg-path", "folder", "train.py"], ["folder"]),
    "broken yaml": (["--ft-cfg-path", "broken.yaml", "train.py"], ["broken.yaml"]),
    "yaml list": (["--ft-cfg-path", "list.yaml", "train.py"], ["list.yaml"]),
    "misspelt key": (
        ["--ft-cfg-path", "misspelt.yaml", "train.py"],
        ["misspelt.yaml", "rank_heartbeat_timout", "rank_heartbeat_timeout"],
    ),
    "wrong type": (["--ft-cfg-path", "wrong_type.yaml", "train.py"], ["rank_heartbeat_timeout", "soon"]),
    "wrong signal": (["--ft-cfg-path", "wrong_signal.yaml", "train.py"], ["rank_termination_signal", "SIGFOO"]),
    "wrong signal, with a flag": (
        ["--ft-cfg-path", "wrong_signal.yaml", "--ft-rank-heartbeat-timeout", "30", "train.py"],
        ["rank_termination_signal", "SIGFOO"],
    ),
    "-1": (["--ft-rank-heartbeat-timeout", "-1", "train.py"], ["--ft-rank-heartbeat-timeout", "-1"]),
    "0": (["--ft-rank-heartbeat-timeout=0", "train.py"], ["--ft-rank-heartbeat-timeout", "0"]),
    "abc": (["--ft-initial_rank_heartbeat_timeout", "abc", "train.py"], ["abc"]),
    "nan": (["--ft-param-rank_heartbeat_timeout", "nan", "train.py"], ["nan"]),
    "section without limit": (["--ft-rank-section-timeouts", "step:", "train.py"], ["step"]),
    "misspelt flag": (["--ft-rank-hartbeat-timeout", "30", "train.py"], ["--ft-rank-heartbeat-timeout"]),
    "min-healthy": (["--restart-policy", "min-healthy", "train.py"], ["min-healthy"]),
    "ranks": (["--nproc-per-node", "zero", "train.py"], ["zero"]),
    "nodes": (["--nnodes", "2:1", "train.py"], ["2:1"]),
    "restarts": (["--max-restarts", "-2", "train.py"], ["-2"]),
    "signal to handle": (["--signals-to-handle", "SIGKILL", "train.py"], ["SIGKILL"]),
    "both -m and --no-python": (["-m", "--no-python", "train.py"], ["--no-python", "-m"]),
    "log folder in a file": (["--log-dir", "list.yaml/logs", "train.py"], ["list.yaml/logs: Not a directory"]),
    "log folder in /proc": (["--log-dir", "/proc/x", "train.py"], ["--log-dir", "/proc/x", "No such file"]),
    "missing module": (["-m", "trian"], ["there is no module 'trian'", "did you mean 'train'?"]),
    "backend": (["--rdzv-backend", "etcd", "--rdzv-endpoint", "a:1", "train.py"], ["etcd"]),
    "empty id": (["--rdzv-id=", "--nnodes", "2", "train.py"], ["--rdzv-id", "probably empty", "--nnodes 2"]),
    "event log": (["--event-log-handler", "foo", "train.py"], ["--event-log-handler", "foo", "console"]),
}  # fmt: skip


@pytest.fixture
def folder(jobs: Jobs) -> Path:
    """A working directory with a script that must not run, and some YAML files."""
    jobs.script("say('started')", "train.py")
    (jobs.folder / "folder").mkdir()
    for name, text in YAML.items():
        (jobs.folder / name).write_text(text)
    return jobs.folder


def check_refusal(job: Job, state: Path) -> str:
    said = job.end(2)
    assert job.spawned.out() == "" and not job.run_dir.exists() and not state.exists()
    lines = said.splitlines()
    assert len(lines) == 1 and lines[0].startswith("ft_launcher: error: "), said
    return lines[0]


@pytest.mark.parametrize("row", ROWS)
def test_one_clear_line(jobs: Jobs, folder: Path, row: str) -> None:
    arguments, words = ROWS[row]
    state = folder / "state"
    line = check_refusal(jobs.command(*arguments, env={"XDG_STATE_HOME": str(state)}), state)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PET_FT_RANK_HEARTBEAT_TIMEOUT", "never", ["PET_FT_RANK_HEARTBEAT_TIMEOUT", "never"]),
        ("FAULT_TOL_CFG_PATH", "list.yaml", ["list.yaml"]),
        ("PET_NPROC_PER_NODE", "none", ["PET_NPROC_PER_NODE", "none"]),
        ("PYTHON_EXEC", "/no/such/python", ["PYTHON_EXEC", "/no/such/python"]),
    ],
)
def test_mistake_in_the_environment(
    jobs: Jobs, folder: Path, variable: str, value: str, words: list[str]
) -> None:
    state = folder / "state"
    env = {"XDG_STATE_HOME": str(state), variable: value}
    line = check_refusal(jobs.plain("train.py", env=env), state)
    assert all(word in line for word in words), line


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_script(jobs: Jobs, folder: Path) -> None:
    (folder / "train.py").chmod(0)
    assert "cannot be read" in check_refusal(jobs.command("train.py"), folder / "state")


def test_help_is_no_mistake(jobs: Jobs) -> None:
    job = jobs.command("--help")
    assert job.end(0) == ""
    assert "--ft-rank-heartbeat-timeout" in job.spawned.out() and not job.run_dir.exists()


def test_script_arguments_are_not_looked_at(jobs: Jobs) -> None:
    """`torchrun train.py --log x` is an error of torchrun's: an ambiguous option."""
    job = jobs.command(
        "--nproc-per-node", "1", jobs.script("say(sys.argv[1:])"), "--log", "x", "--max-restarts", "-2"
    )
    job.end(0)
    assert job.lines(r"\['--log', 'x', '--max-restarts', '-2'\]")


def test_ranks_that_cannot_be_started(jobs: Jobs) -> None:
    """It was all right at the start of the job; before the restart the folder for the logs is removed."""
    text = """
import shutil
meet()
if RANK == 0:
    shutil.rmtree("logs")
    open("logs", "w").close()
    sys.exit(3)
wait()
"""
    job = jobs(text, "--max-restarts", "1", "--log-dir", "logs", "--redirects", "3")
    said = job.end(1)
    assert "Traceback" not in said
    *_, last, report = said.splitlines()  # which is of the first cycle, and may come a moment later
    assert "its ranks could not be started: [Errno 20] Not a directory" in last + report
