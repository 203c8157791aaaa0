"""How a job of two nodes ends: done, done at different times, preempted."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil
import pytest

from tests.nodes.conftest import Cluster

A_FINISHES_FIRST = """
if NODE == "a":
    say("finished")
    sys.exit(0)
if CYCLE == 0:
    until("fail")
    sys.exit(3 * LOCAL)
until("finish")
say("finished")
"""


@pytest.mark.slow
def test_a_node_that_is_done_starts_again_if_another_one_fails(cluster: Cluster) -> None:
    a, b = cluster.pair(A_FINISHES_FIRST)
    a.hear("finished", 0), b.hear("starts", 0)
    cluster.tell("fail")
    a.hear("finished", 1), b.hear("starts", 1)
    a.spawned.wait_for(lambda: not a.ranks())
    cluster.tell("finish")
    a.end(0), b.end(0)
    assert a.restarts() == b.restarts() == [(1, 1)]


B_STANDS = """
while NODE == "b" and not told("finish"):
    time.sleep(1)
say("finished")
"""


@pytest.mark.slow
def test_ranks_that_stand_when_the_other_node_is_done_are_reported_and_not_ended(cluster: Cluster) -> None:
    a, b = cluster.pair(B_STANDS)
    a.hear("finished", 0), b.hear("starts", 0)
    b.wait_for("verdict on cycle 0", ceiling=120)
    cluster.tell("finish")
    a.end(0), b.end(0)
    delayed = b.journal("exit_delayed")
    assert sorted(each["rank"] for each in delayed) == [2, 3]
    assert not any(each["has_finished"] for each in delayed)
    assert len(b.journal("incident")) == 1 and not a.journal("exit_delayed", "incident")


SAVES = """
def save(number, frame):
    say("saves")
    time.sleep(0.5)
    sys.exit(0)
if LOCAL == 0:  # the others die of it
    signal.signal(signal.SIGTERM, save)
say("is ready")
number = 0
while True:
    number += 1
    step(number)
"""


@pytest.mark.slow
def test_slurm_signals_every_process_of_both_nodes(cluster: Cluster) -> None:
    """Ranks first, so that every launcher sees ranks end before it knows why."""
    a, b = cluster.pair(SAVES, "--ft-preempted-exit-code", "75")
    a.hear("is ready", 0), b.hear("is ready", 0)
    everyone: list[psutil.Process] = [*a.ranks(), *b.ranks(), *a.processes(), *b.processes()]
    for node in a, b:  # neither runs meanwhile: how long this process takes for it does not matter
        node.spawned.send_signal(signal.SIGSTOP)
    for process in dict.fromkeys(everyone):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    for node in a, b:
        node.spawned.send_signal(signal.SIGCONT)
    for node in a, b:
        said = node.end(75)
        assert "Received Signals.SIGTERM death signal, shutting down workers" in said
        assert "FAILED" not in said
        assert node.cycles() == [0]
    assert a.hear("saves", 0, ranks=1) == {0} and b.hear("saves", 0, ranks=1) == {2}


@pytest.mark.slow
def test_a_scheduler_that_signals_the_launchers_one_after_the_other(cluster: Cluster) -> None:
    """The ranks of b find their peers gone before their own launcher gets the signal: still no node restarts."""
    a, b = cluster.pair(SAVES)
    a.hear("is ready", 0), b.hear("is ready", 0)
    a.spawned.send_signal(signal.SIGTERM)
    a.hear("saves", 0, ranks=1)
    b.spawned.send_signal(signal.SIGTERM)
    a.end(0), b.end(0)
    assert a.cycles() == b.cycles() == [0]


SAVES_LONG = """
def save(number, frame):
    if NODE == "b":
        say("saves")
        until("saved")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
say("is ready")
wait()
"""


@pytest.mark.slow
def test_preempted_host_of_the_store_leaves_after_one_that_saves(cluster: Cluster) -> None:
    """The end is agreed through the store, so its host leaves last."""
    a, b = cluster.pair(SAVES_LONG, "--ft-preempted-exit-code", "75")
    a.hear("is ready", 0), b.hear("is ready", 0)
    for node in a, b:
        node.spawned.send_signal(signal.SIGTERM)
    b.hear("saves", 0)
    cluster.tell("saved")
    assert "the node that hosts" not in b.end(75)
    a.end(75)
