"""A job of one node whose checks find something: it trains, with a warning."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.launcher.conftest import Jobs
from tests.processes import alive, wait_until

SICK = ["--ft-health-command", "echo 'the card is loose'; exit 1"]
TRAINS = """
say("trains")
while not os.path.exists(os.environ["NOTES"] + "/finish"):
    time.sleep(0.01)
"""


def test_a_finding_is_told_once_and_is_in_the_report(jobs: Jobs) -> None:
    """The only node of a job trains, although it is sick."""
    wait = "while not os.path.exists(os.environ['NOTES'] + '/fail'):\n    time.sleep(0.01)\nsys.exit(3)"
    flags = ["--ft-health-action", "exclude", "--ft-node-health-check-interval", "0.2"]
    job = jobs(wait, *SICK, *flags, nproc=1)
    job.wait_for(r"health of this node: command: the card is loose \(sick\)")
    (job.notes / "fail").touch()
    assert job.end(3).count("the card is loose") == 1
    (event,) = job.journal("health")
    assert (event["check"], event["verdict"], event["hardware"]) == ("command", "sick", False)
    (report,) = job.run_dir.glob("incidents/*/report.txt")
    assert "Health of the node, command: the card is loose." in report.read_text()


def test_a_node_that_gets_sick_while_ranks_train_kills_nothing(jobs: Jobs, tmp_path: Path) -> None:
    """Also where it is to be excluded: no other node is left."""
    sick = tmp_path / "sick"
    command = ["--ft-health-command", f"! test -e '{sick}'", "--ft-node-health-check-interval", "0.2"]
    job = jobs(TRAINS, *command, "--ft-health-action", "exclude")
    job.hear("trains", ranks=[0, 1])
    sick.touch()
    job.wait_for("health of this node: command: exit code 1 of --ft-health-command")
    job.wait_for("the job has no other node: it continues on this one, although it is sick")
    (job.notes / "finish").touch()
    job.end(0)
    assert not job.journal("restart", "node_excluded")


def test_storage_that_hangs_holds_up_nothing(jobs: Jobs, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    job = jobs(TRAINS, "--ft-storage-health-check-path", pipe, nproc=1)
    job.hear("trains", ranks=[0])
    job.wait_for(f"health of this node: storage: {pipe}: no answer within 2 s")
    (job.notes / "finish").touch()
    job.end(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_that_hangs_ends_with_its_launcher(jobs: Jobs, tmp_path: Path, number: int) -> None:
    pid, pipe = tmp_path / "pid", tmp_path / "pipe"
    os.mkfifo(pipe)
    command = f"echo $$ > {pid}; sleep 1000"
    options = [
        "--ft-health-command",
        command,
        "--ft-health-timeout",
        "500",
        "--ft-storage-health-check-path",
        pipe,
    ]
    job = jobs(TRAINS, *options, nproc=1)
    wait_until(lambda: pid.exists() and pid.read_text(), what="the command has begun")
    job.spawned.send_signal(number)
    wait_until(lambda: not alive(int(pid.read_text())), what="the command has ended")
    job.spawned.wait()
