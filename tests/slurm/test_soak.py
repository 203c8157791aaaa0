"""The character model on two nodes through all that a cluster does to a job: all of it in one run, then the rest.

Each run ends with the weights of an undisturbed one; a preemption costs no step but one that was not yet saved, a
failure at most the steps since the last checkpoint; and nothing of the job is left on any node.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.training import Training, undisturbed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

Undisturbed = Callable[[int], dict[str, Any]]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Results of undisturbed runs, by their number of steps."""
    known: dict[int, dict[str, Any]] = {}

    def result(steps: int) -> dict[str, Any]:
        if steps not in known:
            known[steps] = undisturbed(tmp_path_factory.mktemp("undisturbed"), steps)
        return known[steps]

    return result


def check(training: Training, cluster: Cluster, expected: dict[str, Any]) -> None:
    """What must hold at the end of each run."""
    assert training.end() == "COMPLETED 0:0", training.text()
    assert training.result == expected
    training.wait_until_nothing_is_left()
    assert cluster.run("squeue", "--noheader") == ""
    training.check_lost_steps()


def preempt(training: Training, cluster: Cluster) -> str:
    """A job of higher priority takes both nodes for 3 seconds; its id."""
    nodes = cluster.run("squeue", "-h", "-j", training.job, "-o", "%N").strip()
    words = ["--parsable", "--partition=high", "--exclusive", f"--nodelist={nodes}", "--output=/dev/null"]
    return cluster.run("sbatch", *words, "--wrap=sleep 3").strip()


def test_a_time_limit_that_comes_without_a_signal(
    cluster: Cluster, tmp_path: Path, expected: Undisturbed
) -> None:
    training = Training.of_characters(cluster, tmp_path, steps=160, pace=0.6)
    assert training.start("--time=1", "--sbatch=--signal=URG@1", ranks=2).returncode == 0  # ignored by all
    training.wait_for("attempt 2 begins", seconds=200)
    cluster.run("scontrol", "update", f"jobid={training.job}", "timelimit=20")
    training.end(seconds=300)
    check(training, cluster, expected(160))
    assert (training.kinds()[0], training.kinds()[-1]) == ("time limit", "finished")


def test_a_drained_node_is_left_when_the_job_is_told_to(
    cluster: Cluster, tmp_path: Path, expected: Undisturbed
) -> None:
    training = Training.of_characters(cluster, tmp_path, steps=60)
    assert training.start(ranks=2).returncode == 0
    training.wait_for_step(20)
    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=maintenance")
    cluster.run("scancel", "--signal=TERM", training.job)
    check(training, cluster, expected(60))
    assert training.kinds() == ["preempted", "finished"]
    assert re.search(r"attempt 2 begins: .* on n\[(1,3|1,4|3-4)\]$", training.text(), re.MULTILINE), (
        training.text()
    )


def test_all_of_it_in_one_run(own_cluster: Cluster, tmp_path: Path, expected: Undisturbed) -> None:
    cluster, steps = own_cluster, 420
    training = Training.of_characters(cluster, tmp_path, steps, pace=0.5)
    options = ("--sbatch=--partition=low", "--time=1", "--notice=5")
    assert training.start(*options, ranks=2, restarts=3).returncode == 0
    training.wait_for("attempt 4 follows", seconds=400)  # (a) three time limits
    cluster.run("scontrol", "update", f"jobid={training.job}", "timelimit=60")
    training.wait(
        lambda: "RUNNING" in cluster.run("squeue", "-h", "-j", training.job, "-o", "%T"), 60, "a start"
    )
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
    training.end(seconds=400)
    check(training, cluster, expected(steps))
    assert training.kinds()[:4] == [*["time limit"] * 3, "preempted"]
    assert training.resumed[:3] == training.stopped[:3]
    assert os.path.exists(training.run / "finished.flag")
