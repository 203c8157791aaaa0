"""The character model on two nodes through all that a cluster does to a job, in one run.

It ends with the weights of an undisturbed one; a preemption costs no step but one that was not yet saved, a failure at
most the steps since the last checkpoint; and nothing of the job is left on any node.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.training import Training, undisturbed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def preempt(training: Training, cluster: Cluster) -> str:
    """A job of higher priority takes both nodes for 3 seconds; its id."""
    nodes = cluster.run("squeue", "-h", "-j", training.job, "-o", "%N").strip()
    words = ["--parsable", "--partition=high", "--exclusive", f"--nodelist={nodes}", "--output=/dev/null"]
    return cluster.run("sbatch", *words, "--wrap=sleep 3").strip()


def test_all_of_it_in_one_run(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster, steps = own_cluster, 420
    training = Training.of_characters(cluster, tmp_path, steps, pace=0.5)
    options = ("--sbatch=--partition=low", "--time=1", "--notice=5")
    assert training.start(*options, ranks=2, restarts=3).returncode == 0
    training.wait_for("attempt 4 follows", seconds=400)  # (a) three time limits
    cluster.run("scontrol", "update", f"jobid={training.job}", "timelimit=60")
    asks = ("squeue", "-h", "-j", training.job, "-o", "%T")
    training.wait(lambda: "RUNNING" in cluster.run(*asks), 60, "a start")
    for number in (signal.SIGKILL, signal.SIGSTOP):  # (b) and (c)
        training.wait(lambda: len(training.ranks()) == 4, 60, "four ranks")
        before = len(training.resumed)
        training.goes_on(2)
        training.a_rank("n2").send_signal(number)
        training.wait(lambda before=before: len(training.resumed) > before, 120, "the restart")
    training.goes_on(2)
    urgent = preempt(training, cluster)  # (e)
    training.wait_for("attempt 5 follows")
    training.end(urgent)
    training.wait_for("attempt 5 begins")
    training.wait(lambda: len(training.ranks()) == 4, 60, "four ranks")
    training.goes_on(2)
    cluster.kill_node("n2", with_its_processes=False)  # (d)
    training.wait_for("attempt 6 begins")
    assert training.end(seconds=400) == "COMPLETED 0:0", training.text()
    assert training.result == undisturbed(tmp_path / "undisturbed", steps, ranks=4)
    training.wait_until_nothing_is_left()
    assert cluster.run("squeue", "--noheader") == ""
    training.check_lost_steps()
    assert training.kinds()[:4] == [*["time limit"] * 3, "preempted"]
    assert training.resumed[:3] == training.stopped[:3]
    assert os.path.exists(training.run / "finished.flag")
