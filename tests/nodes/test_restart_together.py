"""A rank of one node fails: all ranks of all nodes start again, in the same cycle, for one restart of the budget.

A job without progress, or with one failure again and again, ends on all nodes, whichever node's ranks fail. And how a
job of two nodes ends: done, done at different times, preempted."""

from __future__ import annotations

import json
import re
import signal
import time
from contextlib import suppress

import psutil
import pytest
from torch.distributed import PrefixStore, TCPStore

from tests.cluster import QUICK, TRAINS, Cluster
from tests.processes import wait_until

FAILS_ON_BOTH = """
client = connect()
for number in range(1, 6):
    step(number)
    client.heartbeat(step=number)
if (CYCLE, RANK) == (0, 3):
    os.kill(os.getpid(), signal.SIGKILL)
if (CYCLE, RANK) in [(1, 0), (2, 2)]:
    with client.section("reading"):
        wait()
if (CYCLE, RANK) == (3, 1):
    sys.exit(5)
while not told("finish"):
    number += 1
    step(number)
    client.heartbeat(step=number)
say("finished")
"""
"""Cycle by cycle: a rank of b dies, one of a hangs, one of b hangs, one of a exits with 5."""


@pytest.mark.slow
def test_a_rank_of_either_node_dies_or_hangs(cluster: Cluster) -> None:
    checks = cluster.folder / "checks"
    flags = ["--ft-health-command", f"echo check >> '{checks}'", "--ft-node-health-check-interval", "1000"]
    a, b = cluster.pair(FAILS_ON_BOTH, *flags, "--ft-rank-section-timeouts", "reading:0.7", restarts=4)
    assert a.hear("starts", 4) == {0, 1}
    assert b.hear("starts", 4) == {2, 3}
    cluster.tell("finish")
    said = a.end(0), b.end(0)
    for node in a, b:
        assert node.cycles() == [0, 1, 2, 3, 4], "the same cycles on both nodes"
        assert node.restarts() == [(1, 1), (2, 2), (3, 3), (4, 4)], "one count for the whole job"
    assert [each["rank"] for each in a.journal("verdict")] == [0]
    assert [each["rank"] for each in b.journal("verdict")] == [2]
    assert "FAILED: rank 3" in said[1] and "killed by SIGKILL" in said[1]
    assert "reason from node" in said[0] and "rank 3" in said[0], "the other node's launcher names it too"
    assert checks.read_text().split() == ["check", "check"], "a restart with the same nodes checks nothing"
    assert not a.journal("health")


BOTH_FAIL = """
say("is ready")
until(f"fail-{CYCLE}")
if LOCAL == 1:
    sys.exit(7)
wait()
"""


@pytest.mark.slow
def test_ranks_of_both_nodes_fail_in_the_same_moment(cluster: Cluster) -> None:
    """One restart is spent, not one each, and the nodes agree on who was first and how the job ends."""
    a, b = cluster.pair(BOTH_FAIL, restarts=1)
    for cycle in 0, 1:
        a.hear("is ready", cycle), b.hear("is ready", cycle)
        cluster.tell(f"fail-{cycle}")
    said = a.end(7), b.end(7)
    assert a.cycles() == b.cycles() == [0, 1]
    assert a.restarts() == b.restarts() == [(1, 1)]
    first = [re.findall(r"(?<!ALSO )FAILED: rank \d .*, cycle (\d)", words) for words in said]
    assert sorted(first[0] + first[1]) == ["0", "1"], (
        "in either cycle one node was first; the other one names it"
    )
    named = [words.count("reason from node") for words in said]
    assert [len(cycles) for cycles in first] == [2 - count for count in named]


# -- no progress ----------------------------------------------------------------------------------------------

FAILS_IN_TURN = """
step(1)
if RANK == 0 and CYCLE == 0:
    with open(os.path.join(NOTES, "latest"), "w") as file:
        file.write("100")
step(2)
if RANK == 2 * (CYCLE % 2):
    sys.exit(5)
wait()
"""


@pytest.mark.slow
def test_all_launchers_end_with_one_code_and_count(cluster: Cluster) -> None:
    """Each node sees every second failure; both count all of them."""
    flags: tuple[str, ...] = ("--ft-checkpoint-iteration-file", str(cluster.notes / "latest"))
    flags += "--ft-max-no-progress-cycles", "3", "--ft-no-restart-exit-code", "42"
    a, b = cluster.pair(FAILS_IN_TURN, *flags, restarts=10)
    said = a.end(42), b.end(42)
    assert a.cycles() == b.cycles() == [0, 1, 2, 3]
    assert all("no progress in 3 " in each and "iteration 100" in each for each in said)


@pytest.mark.slow
def test_one_bug_on_two_nodes_ends_the_job(cluster: Cluster) -> None:
    """The exception and its step are what nodes agree on, whichever node's rank raises it."""
    told = "from holdfast import Loop\nwith Loop() as loop: loop.step(2)\n"
    bug = 'raise IndexError(f"index {CYCLE} is out of range")'
    a, b = cluster.pair(told + FAILS_IN_TURN.replace("sys.exit(5)", bug), restarts=10)
    said = a.end(93), b.end(93)
    assert a.cycles() == b.cycles() == [0, 1, 2]
    assert all("the same failure 3 times in a row: IndexError: index # is" in each for each in said)


# -- how a job of two nodes ends -----------------------------------------------------------------------------


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


SAVES_LONG = """
def save(number, frame):
    say("saves")
    until(f"{NODE} saved")
    os._exit(0)
if LOCAL == 0:  # the others die of it
    signal.signal(signal.SIGTERM, save)
say("is ready")
number = 0
while True:
    number += 1
    step(number)
"""


@pytest.mark.slow
def test_a_scheduler_that_signals_the_launchers_one_after_the_other(cluster: Cluster) -> None:
    """The ranks of b find their peers gone before their own launcher gets the signal: still no node restarts. The host
    of the store leaves after b, which saves longer: the end is agreed through the store."""
    a, b = cluster.pair(SAVES_LONG, "--ft-preempted-exit-code", "75")
    a.hear("is ready", 0), b.hear("is ready", 0)
    for node in a, b:
        node.spawned.send_signal(signal.SIGTERM)
        node.hear("saves", 0, ranks=1)
    cluster.tell("a saved")
    a.spawned.wait_for(lambda: not a.ranks())
    cluster.tell("b saved")
    assert "the node that hosts" not in b.end(75)
    a.end(75)
    assert a.cycles() == b.cycles() == [0]


@pytest.mark.slow
def test_unreadable_cycle_record_loses_no_node(cluster: Cluster) -> None:
    """Another program uses the key. All ranks start again, and the check of the nodes before that finds that a
    clock is ahead. What any text is read as: tests/control/test_records.py."""
    a, b = cluster.pair(TRAINS, node_timeout=QUICK)
    a.hear("trains", 0)
    store = PrefixStore("holdfast/job", TCPStore("127.0.0.1", cluster.port, is_master=False))
    store.set("clock", json.dumps({"node": "other", "at": time.time() + 3600.0}))
    store.set("cycle/1", "no record")
    assert a.hear("trains", 1) | b.hear("trains", 1) == {0, 1, 2, 3}
    ahead = "health of this node: clock: the clock of node other is "
    wait_until(lambda: any(ahead in node.spawned.err() for node in (a, b)), what=ahead)
    cluster.tell("finish")
    for node in a, b:
        assert not re.search("Exception in thread|NODE LOST|rendezvous is gone", node.end(0))


B_FINISHES_FIRST = """
if NODE == "a":
    until("finish")
"""


@pytest.mark.slow
def test_store_host_waits_for_a_stopped_launcher(cluster: Cluster) -> None:
    """A launcher is stopped, for less than the node timeout, while the job ends well: the host of the store leaves
    last, so both end with 0."""
    a, b = cluster.pair(B_FINISHES_FIRST)

    def waits_for_a() -> bool:
        exits = [each["mono"] for each in b.journal("rank_exit")]
        return len(exits) == 2 and time.monotonic() - max(exits) > 1.0

    b.spawned.wait_for(waits_for_a)
    b.spawned.send_signal(signal.SIGSTOP)
    cluster.tell("finish")
    with suppress(pytest.fail.Exception):
        wait_until(lambda: a.spawned.returncode is not None, ceiling=12.0)  # it must not
    b.spawned.send_signal(signal.SIGCONT)
    assert (a.spawned.wait(), b.spawned.wait()) == (0, 0)
