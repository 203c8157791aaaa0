"""examples/slurm on a real cluster: one of each kind of end. The long combinations are in test_soak.py."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.training import SAVE_EVERY, SCRIPTS, Training, undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WAITS = """
import os, signal
print("rank", os.environ["RANK"], "waits", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("name", ["chain.sh", "train.sbatch", "train-array.sbatch"])
def test_the_scripts_are_bash(name: str) -> None:
    subprocess.run(["bash", "-n", SCRIPTS / name], check=True)


def test_a_failed_and_preempted_run_ends_as_an_undisturbed_one(cluster: Cluster, tmp_path: Path) -> None:
    steps = 30
    training = Training.of_characters(cluster, tmp_path, steps)
    training.submit(environ={"MAX_RESTARTS": "0"})
    training.wait_for_step(10)
    training.a_rank("n2").send_signal(signal.SIGKILL)
    training.wait_for_step(20)
    cluster.run("scancel", "--signal=TERM", training.job)  # to every process of the step at once
    expected = undisturbed(tmp_path / "undisturbed", steps)
    assert training.end() == "COMPLETED 0:0", training.text()
    assert training.endings == ["failed", "preempted", "finished"], training.text()
    # That of step 10 may have been on its way.
    assert 10 - SAVE_EVERY <= training.resumed[0] <= 10 + SAVE_EVERY
    assert training.resumed[1:] == training.stopped  # not a step is lost
    assert training.result == expected
    training.wait_until_nothing_is_left()


def test_scancel_ends_the_chain_for_good_and_another_chain_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    program = tmp_path / "waits.py"
    program.write_text(WAITS)
    training = Training(cluster, tmp_path, [program])
    training.submit(environ={"RANKS_PER_NODE": "1"})
    training.wait_for(r"^rank \d waits", 2)
    second = tmp_path / "second.log"
    assert training.end(training.submit(f"--output={second}", "--nodes=1")) == "FAILED 1:0"
    assert f"refused: job {training.job} trains in {training.run} already (RUNNING)" in second.read_text()
    cluster.run("scancel", training.job)
    assert training.end().startswith("CANCELLED")
    training.wait_until_nothing_is_left()
    assert training.endings == ["ended-by-slurm"]
    assert cluster.run("squeue", "--noheader") == ""


@pytest.mark.soak
def test_a_job_that_fails_at_once_gives_up_and_says_why(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text("raise ValueError('no such data set: corpus-7')\n")
    training = Training(cluster, tmp_path, [program])
    training.submit(environ={"RANKS_PER_NODE": "1", "MAX_RESTARTS": "0", "MAX_FAILURES": "2"})
    assert training.end() == "FAILED 1:0"
    assert training.endings == ["failed", "failed"]
    assert (
        training.text()
        .splitlines()[-1]
        .endswith("gave up after 2 failures in a row, the last with exit code 1: its cause is above")
    )
    assert training.text().count("ValueError: no such data set: corpus-7") >= 2
    assert cluster.run("squeue", "--noheader") == ""
