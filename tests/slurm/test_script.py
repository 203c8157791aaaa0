"""The batch script of `holdfast slurm`: what exactly it is and what is refused; and what Slurm tells of a job."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from holdfast.autoresume.outcome import Scheduler
from holdfast.cli.main import main
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.integrations.slurm.job import Job, Place, job_of, node_name, word_of
from holdfast.integrations.slurm.script import Plan, batch_script, checked, time_limit
from tests.slurm.cluster import REQUIRED, missing
from tests.slurm.conftest import cluster_or_skip

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "slurm" / "train.sbatch"
COMMAND = ("ft_launcher", "--nproc-per-node=8", "--max-restarts=3", "train.py", "--name", "it's a test")


def plan(**changes: object) -> Plan:
    known = {"run_dir": "/shared/my run", "command": COMMAND, "python": "/opt/env/bin/python", "nodes": 2}
    return Plan(**{**known, "time": "4:00:00", "options": ("--partition=low",), **changes})  # type: ignore[arg-type]


def test_the_example_is_what_a_dry_run_prints() -> None:
    command = ("ft_launcher", "--nproc-per-node=8", "--max-restarts=3", "train.py")
    example = plan(run_dir="/shared/run-1", command=command)
    assert batch_script(checked(example), "1.2.3") == EXAMPLE.read_text()
    subprocess.run(["bash", "-n", EXAMPLE], check=True)


def run_script(folder: Path, tools: dict[str, str], **changes: object) -> subprocess.CompletedProcess[str]:
    """Run the batch script beside scripts of these texts; `keep` is its Python."""
    for name, text in {"scontrol": "echo n1; echo n2", **tools}.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "12345", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "HOLDFAST_ATTEMPT": "77", **job}
    script = batch_script(plan(python=str(folder / "keep"), **changes), "1.2.3")
    command = ["bash", "-u", "-c", script]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


def test_each_word_reaches_the_program_as_it_is(tmp_path: Path) -> None:
    tools = {
        "srun": 'printf \'%s\\n\' "$@" "$HOLDFAST_ATTEMPT" "$PATH"',
        "keep": 'case "$*" in *--attempt-begins) echo 4 ;; esac',
    }
    done = run_script(tmp_path, tools, max_jobs=7)
    *words, attempt, path = done.stdout.splitlines()
    assert (done.returncode, attempt, path) == (0, "4", f"{tmp_path}:/usr/bin:/bin:{tmp_path}")
    assert words[:3] == ["--kill-on-bad-exit=0", "--wait=0", "--export=ALL"]
    assert words[3:8] == ["bash", "-c", 'exec "$@"', "bash", "ft_launcher"]
    assert words[-len(COMMAND) + 1 :] == list(COMMAND[1:])
    assert "--rdzv-endpoint=n1:22345" in words
    assert "--ft-run-dir=/shared/my run" in words
    assert done.stderr == ""


def test_a_launcher_that_is_not_there_is_an_exit_code(tmp_path: Path) -> None:
    ended = 'case "$*" in *--attempt-ended=*) echo "${@: -1}" ;; esac'
    tools = {"srun": 'shift 3; exec "$@"', "keep": ended}
    done = run_script(tmp_path, tools, command=("/nowhere/ft_launcher", "t.py"))
    assert done.stdout.split() == ["--attempt-ended=127"], done.stderr


MODULE = ("/opt/env/bin/python", "-m", "holdfast.fault_tolerance.launcher")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"command": (*MODULE, "train.py")}, f' bash {" ".join(MODULE)} --nnodes="$SLURM_NNODES"'),
        # an option of the program that has the name of one of the launcher
        ({"command": ("ft_launcher", "--nproc-per-node=2", "train.py", "--nnodes=3")}, "--nnodes=3"),
        # ranks may save until a little before the limit
        ({"notice": 180}, "--term-timeout=150 "),
        ({"notice": 600}, "--term-timeout=570 "),
        ({"notice": 20}, "--term-timeout=14 "),
        ({"notice": 1}, "--term-timeout=1 "),
    ],
)
def test_what_is_in_the_script(changes: dict[str, object], expected: str) -> None:
    assert expected in batch_script(checked(plan(**changes)), "1.2.3")


PREEMPTED = "--ft-preempted-exit-code"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": ("torchrun", "train.py")}, "must begin with ft_launcher"),
        ({"command": ("ft_launcher", "--nnodes=2", "t.py")}, "--nnodes after --: the batch script gives it"),
        ({"command": ("ft_launcher", "--rdzv_endpoint", "a:1", "t.py")}, "--rdzv-endpoint after --"),
        ({"command": ("ft_launcher", f"{PREEMPTED}=9", "t.py")}, f"{PREEMPTED} after --"),
        ({"time": "3"}, "--time 3 and --notice 180: the notice comes before the job has begun"),
        ({"time": "soon"}, "--time 'soon': give minutes"),
        ({"name": 'a"b'}, "no quotes, backslashes or control characters"),
        ({"run_dir": "/a\nb"}, "no quotes, backslashes or control characters"),
        ({"run_dir": "/a%j"}, "Slurm would replace the %"),
        ({"options": ("--no-requeue",)}, "--sbatch=--no-requeue: the job has to be requeued, leave it out"),
        ({"options": ("--no-req",)}, "--sbatch=--no-req: the job has to be requeued"),
        ({"options": ("low",)}, "an option of sbatch begins with -"),
        *(
            ({"options": (option,)}, "the tasks of an array would train beside each other")
            for option in ("--array=1-3", "--arr 1-3", "-a1-3", "-a 1-3")
        ),
        ({"options": ('--comment="a b"',)}, "--sbatch '--comment=\"a b\"': no quotes"),
        ({"port": "80; rm"}, "--port '80; rm': give a number from 1 to 65535"),
        ({"port": "65536"}, "--port '65536'"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        batch_script(checked(plan(**changes)), "1.2.3")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("4:00:00", 14400), ("2-12", 216000), ("1-0:30", 88200), ("0-0:0:5", 5)],
)
def test_times_as_sbatch_takes_them(text: str, seconds: int) -> None:
    assert time_limit(text) == seconds


def test_a_dry_run_prints_the_script_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["slurm", "--dry-run", "--run-dir=my run", "--time=4:00:00", "--sbatch=--partition=low"]
    assert main([*words, "--", *COMMAND]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --partition=low\n" in text
    assert f"run_dir={shlex.quote(str(tmp_path / 'my run'))}\n" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_a_dry_run_prints_each_byte_of_a_path(tmp_path: Path, encoding: str) -> None:
    folder, environ = b"l\xe4uft \xc3\xa4", {**os.environ, "PYTHONIOENCODING": encoding}
    words = [sys.executable, "-m", "holdfast", "slurm", "--dry-run", b"--run-dir=" + folder, "--", *COMMAND]
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"run_dir='%s/%s'\n" % (os.fsencode(tmp_path), folder) in done.stdout


def test_what_is_not_submitted_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["slurm", "--nodes=2"]) == 2
    line = "holdfast: error: no command: holdfast slurm [options] -- ft_launcher"
    assert capsys.readouterr().err.startswith(line)
    monkeypatch.setenv("SBATCH_NO_REQUEUE", "1")
    assert main(["slurm", f"--run-dir={tmp_path}", "--", *COMMAND]) == 2
    assert "SBATCH_NO_REQUEUE is set, and the job has to be requeued" in capsys.readouterr().err
    assert not (tmp_path / "job.sbatch").exists()


@pytest.mark.parametrize(
    ("codes", "tries", "code"), [("7 7 0", 3, 0), ("7 7 7 7 0", 4, 1), ("101 0", 1, 1), ("100 0", 1, 0)]
)
def test_an_attempt_that_cannot_begin_is_repeated(tmp_path: Path, codes: str, tries: int, code: int) -> None:
    tools = {
        "keep": f'case "$*" in *--attempt-begins) echo >> {tmp_path}/tries; codes=({codes}); '
        f"exit ${{codes[$(wc -l < {tmp_path}/tries) - 1]}} ;; esac",
        "sleep": "",
        "srun": f"touch {tmp_path}/started",
    }
    done = run_script(tmp_path, tools)
    assert done.returncode == code
    assert len((tmp_path / "tries").read_text().splitlines()) == tries
    assert (tmp_path / "started").exists() == (codes == "7 7 0")


def test_a_sigterm_during_another_one_is_handled_too(tmp_path: Path) -> None:
    """The first was sent by hand, and is no time limit; the second is Slurm's."""
    seen = tmp_path / "seen"
    tools = {
        "srun": f"kill -TERM $PPID; for try in {{1..500}}; do [[ $(wc -l < {seen}) -lt 2 ]] || exit 7; sleep 0.1; done",
        "keep": f'case "$*" in *--job-ends) [[ -s {seen} ]] || kill -TERM $PPID; echo "$*" >> {seen} ;; '
        f'*ended=*) echo "${{@: -1}}" ;; esac',
    }
    seen.touch()
    done = run_script(tmp_path, tools)
    assert done.stdout.split() == ["--attempt-ended=7"], done.stderr
    assert len(seen.read_text().splitlines()) == 2


# -- what Slurm tells of a job, and what that says of the end of an attempt

RUNNING = """JobId=6 JobName=train
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:44 TimeLimit=1-00:10:00 TimeMin=N/A
   StartTime=2026-11-21T19:15:23 EndTime=2026-11-21T19:16:07 Deadline=N/A
   PreemptEligibleTime=2026-11-21T19:15:23 PreemptTime=None
   NumNodes=2-3 NodeList=n[1-2] ReqNodeList=(null) ExcNodeList=n4
"""
BEGAN = datetime(2026, 11, 21, 19, 15, 23, tzinfo=timezone.utc).timestamp()


def test_what_scontrol_shows_is_read() -> None:
    assert job_of(RUNNING) == Job("RUNNING", 2, BEGAN, 87000.0, False, "n4", nodes=2)
    preempted = RUNNING.replace("PreemptTime=None", "PreemptTime=2026-11-21T19:15:40")
    assert job_of(preempted).preempted
    assert not job_of(RUNNING.replace("Requeue=1", "Requeue=0")).requeueable
    assert job_of(RUNNING.replace("1-00:10:00", "UNLIMITED")).limit is None
    assert job_of("") == Job()
    assert not job_of("").alive


def test_whether_a_job_lives() -> None:
    living = ["PENDING", "COMPLETING", "RUNNING", "STOPPED", "STAGE_OUT", "SPECIAL_EXIT"]
    others = ["CANCELLED", "FAILED", "TIMEOUT", ""]
    assert [state for state in living + others if Job(state).alive] == living


@pytest.mark.parametrize(
    ("job", "code", "now", "expected"),
    [
        # scancel --signal: by the exit code
        (Job("RUNNING", began=0, limit=600), 75, 100, Scheduler.NOTHING),
        (Job("RUNNING", began=0, limit=600), 75, 590, Scheduler.TIME_LIMIT),
        # 180 s notice, up to 60 s too early
        (Job("RUNNING", began=0, limit=600), 75, 400, Scheduler.TIME_LIMIT),
        (Job("RUNNING", began=0, limit=600), 1, 590, Scheduler.NOTHING),  # it failed, whatever the time
        (Job("RUNNING", began=0, limit=None), 75, 590, Scheduler.NOTHING),
        (Job("RUNNING", began=0, limit=600, preempted=True), 75, 100, Scheduler.PREEMPTED),
        (Job("RUNNING", began=0, limit=600, preempted=True), 1, 100, Scheduler.NOTHING),
        (Job("COMPLETING", began=0, limit=600), 75, 100, Scheduler.CANCELLED),
        (Job("COMPLETING", began=0, limit=600), 1, 100, Scheduler.CANCELLED),
        (Job("COMPLETING", began=0, limit=600), 137, 601, Scheduler.TIME_LIMIT),
        (Job("COMPLETING", restarts=1), 143, 100, Scheduler.NODE_LOST),
        (Job("COMPLETING", restarts=1, preempted=True), 143, 100, Scheduler.PREEMPTED),
        (Job(), 1, 100, Scheduler.NOTHING),  # Slurm does not know the job: by the exit code
    ],
)
def test_who_ended_an_attempt(job: Job, code: int, now: float, expected: Scheduler) -> None:
    word = word_of(job, restarts=0, code=code, now=now, notice=180)
    assert word.scheduler is expected
    assert bool(word.says) == (expected is not Scheduler.NOTHING)
    assert word.requeued == (job.restarts > 0)


@pytest.mark.parametrize(
    ("job", "code", "now", "expected"),
    [
        (Job("RUNNING", began=0, limit=600), 137, 577, Scheduler.TIME_LIMIT),
        (Job("RUNNING", began=0, limit=600), 137, 100, Scheduler.NOTHING),  # a SIGTERM by hand
        (Job("RUNNING", began=0, limit=None), 137, 577, Scheduler.NOTHING),
        (Job("RUNNING", began=0, limit=600), 1, 577, Scheduler.NOTHING),  # it failed, whatever the time
        (Job("RUNNING", began=0, limit=600, preempted=True), 137, 100, Scheduler.PREEMPTED),
    ],
)
def test_who_ended_an_attempt_that_did_not_stop(job: Job, code: int, now: float, expected: Scheduler) -> None:
    word = word_of(job, restarts=0, code=code, now=now, notice=180, told_to_stop=True)
    assert word.scheduler is expected
    unasked = word_of(job, restarts=0, code=code, now=now, notice=180)
    assert unasked.scheduler is Scheduler.NOTHING  # SIGKILL by another process


def test_where_a_process_runs() -> None:
    environ = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    place = Place.of(environ)
    assert place == Place("4711", 2, "n[1-2]")
    assert place.run == "4711.2"
    assert Place.of({}) is None
    assert [node_name(told) for told in ("n1", "n1:4711", "n1.example.org", "")] == ["n1", "n1", "n1", ""]


def test_without_slurm_tests_skip_or_fail_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(REQUIRED, raising=False)
    reason = missing()
    with pytest.raises(pytest.skip.Exception) as skipped:
        next(cluster_or_skip())
    assert str(skipped.value) == reason
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception) as failed:
        next(cluster_or_skip())
    assert str(failed.value) == f"{REQUIRED}=1, but {reason}"
