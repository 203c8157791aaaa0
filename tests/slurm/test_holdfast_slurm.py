"""`holdfast slurm` on a real cluster: what follows from each end of an attempt. Most ranks need no torch here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.integrations.slurm import job as commands
from tests.slurm.cluster import Cluster
from tests.slurm.training import START, Training, undisturbed

pytestmark = pytest.mark.slow

PROGRAM = """
import os, signal, sys
flag, how = os.environ["FAULT_TOL_FINISHED_FLAG_FILE"], sys.argv[1]
attempt, node = int(os.environ["HOLDFAST_ATTEMPT"]), os.uname().nodename
os.write(1, f"rank {os.environ['RANK']} on {node} in attempt {attempt}\\n".encode())
os.write(1, f"attempt {attempt} of {os.environ.get('PATH')}\\n".encode())
if how == "all" and attempt == 2 and os.environ["RANK"] == "0":
    from holdfast.callbacks.completion import record_suspects
    record_suspects([{"suspect": node, "facts": "the job was stopped for a straggler"}])
    sys.exit(1)
if how == "broken":
    raise ValueError("no such data set: corpus-7")
if how == "does not stop":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
waited = f"{flag}.waited"  # until it was killed: Slurm's signal may come up to a minute early, before there is a rank
waits = how == "node dies" and attempt == 1 or how == "all" and attempt < 5
if waits or how == "does not stop" and not os.path.exists(waited):
    if how == "does not stop":
        open(waited, "w").close()
    while True:
        signal.pause()
if os.environ["RANK"] == "0":
    open(flag, "w").close()
"""


def light(cluster: Cluster, folder: Path, how: str) -> Training:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    return Training(cluster, folder, [program, how])


def nodes_of(training: Training, attempt: int) -> set[str]:
    """Where its two ranks are, once both run."""
    line = rf"^rank \d on (n\d) in attempt {attempt}$"
    training.wait_for(line, 2)
    return set(training.matches(line))


def test_all_that_ends_an_attempt_in_two_jobs_of_one_training(cluster: Cluster, tmp_path: Path) -> None:
    """Cancelled; then a suspected node, a requeue by an administrator, a drained node with a preemption, the end."""
    training = light(cluster, tmp_path, "all")
    assert training.start().returncode == 0
    first = training.job
    nodes_of(training, 1)
    refused = training.start()
    assert refused.returncode == 2
    assert refused.stderr == (
        f"holdfast: error: job {first} trains in {training.run} already (RUNNING). Wait for it, end it "
        f"(scancel {first}), or use another run directory\n"
    )
    words = ["autoresume", "--run-dir", training.run, "--", "true"]
    beside = subprocess.run([sys.executable, "-m", "holdfast", *words], capture_output=True, text=True)
    assert (beside.returncode, beside.stderr) == (2, refused.stderr)
    assert training.chains()[0]["why"] == f"job {first} is RUNNING"
    by_hand = cluster.run("sbatch", "--parsable", "--output=/dev/null", training.run / "job.sbatch").strip()
    assert training.end(by_hand) == "FAILED 1:0"
    cluster.run("scancel", first)
    assert training.end().startswith("CANCELLED")
    training.wait_until_nothing_is_left()
    assert training.kinds(0) == ["cancelled"]
    assert training.chains()[0]["state"] == "cancelled"

    assert training.start().returncode == 0
    before = nodes_of(training, 2)
    nodes_of(training, 3)
    cluster.run("scontrol", "requeue", training.job)
    drained = min(nodes_of(training, 4))
    cluster.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=maintenance")
    cluster.run("scancel", "--signal=TERM", training.job)
    assert training.end() == "COMPLETED 0:0", training.text()
    chain = training.chains()[1]
    assert training.kinds(1) == ["failed", "preempted", "preempted", "finished"]
    failed, requeued, *_ = chain["attempts"]
    (bad,) = failed["suspected"]
    assert bad in before and not {bad, drained} & nodes_of(training, 5)
    assert "requeued from outside" in requeued["why"] and requeued["node"] == ""
    assert chain["state"] == "finished"
    again = training.start()
    assert again.returncode == 2
    assert "Nothing is submitted; to train on, remove it" in again.stderr


def test_a_failed_and_preempted_run_ends_as_an_undisturbed_one(cluster: Cluster, tmp_path: Path) -> None:
    steps = 60
    training = Training.of_characters(cluster, tmp_path, steps)
    assert training.start("--notice=60").returncode == 0  # 40 s to save and leave
    training.wait_for_step(10)
    training.a_rank("n2").send_signal(signal.SIGKILL)
    training.wait(lambda: training.resumed, START, "the second attempt")
    training.goes_on()
    cluster.run("scancel", "--signal=TERM", training.job)  # to every process of the step at once
    expected = undisturbed(tmp_path / "undisturbed", steps, ranks=2)
    assert training.end() == "COMPLETED 0:0", training.text()
    assert training.kinds() == ["failed", "preempted", "finished"], training.text()
    training.check_lost_steps()
    assert training.resumed[1:] == training.stopped  # not a step is lost
    assert training.result == expected
    training.wait_until_nothing_is_left()


def test_a_job_that_fails_at_once_gives_up_and_names_the_cause(cluster: Cluster, tmp_path: Path) -> None:
    training = light(cluster, tmp_path, "broken")
    assert training.start("--max-failures=1", nodes=1).returncode == 0
    assert training.end() == "FAILED 1:0", training.text()
    assert "gave up after a failure: attempt 1 failed" in training.text()
    cause = "ValueError: no such data set: corpus-7 (exit code 1)"
    assert f"{cause}. All attempts: holdfast autoresume" in training.text()
    assert training.chains()[0]["state"] == "gave up"
    assert cluster.run("squeue", "--noheader") == ""


def test_a_job_s_start_is_read_in_any_time_zone(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of a job whose name is not UTF-8."""
    words = ["--parsable", "--begin=now+90days", "--wrap=true", os.fsdecode(b"--job-name=tr\xe4in")]
    number = cluster.run("sbatch", *words).strip()
    monkeypatch.setenv("TZ", "XXX+7:30")
    begins = commands.job(number).began
    command = ["scontrol", "show", "job", number]
    shown = subprocess.run(command, env={**os.environ, "SLURM_TIME_FORMAT": "%s"}, stdout=subprocess.PIPE)
    assert begins is not None and f" StartTime={begins:.0f} ".encode() in shown.stdout
    assert b" JobName=tr\xe4in\n" in shown.stdout


def test_a_node_that_dies_is_named_and_left_out(own_cluster: Cluster, tmp_path: Path) -> None:
    training = light(own_cluster, tmp_path, "node dies")
    assert training.start().returncode == 0
    nodes_of(training, 1)
    own_cluster.kill_node("n2", with_its_processes=True)
    assert training.end() == "COMPLETED 0:0", training.text()
    chain = training.chains()[0]
    assert training.kinds() == ["node lost", "finished"], training.text()
    assert chain["attempts"][0]["node"] == "n2"
    training.wait_until_nothing_is_left()


@pytest.mark.variant
def test_a_training_that_does_not_stop_spends_no_failure(cluster: Cluster, tmp_path: Path) -> None:
    """And a job that gets next to nothing of the submitter's environment finds its launcher, and tells ranks theirs."""
    training = light(cluster, tmp_path, "does not stop")
    options = ("--time=1", "--max-failures=1", "--sbatch=--export=PYTHONPATH,HOLDFAST_ATTEMPT")
    environ = {"HOLDFAST_ATTEMPT": "77"}
    done = training.start(*options, nodes=1, launcher=["ft_launcher"], environ=environ)
    assert done.returncode == 0, done.stderr
    assert training.end(seconds=300) == "COMPLETED 0:0", training.text()
    *stopped, last = training.kinds()
    # Slurm sends the signal up to a minute early, so a slow second attempt may get it too.
    assert (set(stopped), last) == ({"time limit"}, "finished"), training.text()
    assert "did not stop when told to, and was killed" in training.text()
    assert "SIGKILL sent" in training.text()
    told = training.matches(r"^attempt (\d+)")
    assert "77" not in told and told[-1] == str(len(stopped) + 1)
