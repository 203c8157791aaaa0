"""Nodes that come, go, or seem to be gone, and what a healthy job does about it: as little as possible."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.nodes.conftest import QUICK, TRAINS, Cluster
from tests.processes import wait_until

BEATS = """
client = connect()
number = 0
while not told("finish"):
    number += 1
    step(number)
    client.heartbeat(step=number)
    if number == 3:
        say("trains")
    time.sleep(0.02)
"""


def _let_pass(seconds: float) -> None:
    """Time itself is what is tested: nothing may happen in it."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until, what="time")


@pytest.mark.slow
def test_a_stopped_launcher_whose_ranks_train_on_is_no_reason_to_restart(cluster: Cluster) -> None:
    """For more than twice the node timeout; and that of the host of the store, for longer than a silent store gets."""
    a, b = cluster.pair(BEATS, node_timeout=QUICK)
    a.hear("trains", 0), b.hear("trains", 0)
    for node, seconds in (b, 2 * QUICK + 1), (a, 2 * QUICK + 1):
        node.spawned.send_signal(signal.SIGSTOP)
        _let_pass(seconds)
        node.spawned.send_signal(signal.SIGCONT)
        _let_pass(2.5)  # what was seen too late would be decided now
    cluster.tell("finish")
    a.end(0), b.end(0)
    assert a.cycles() == b.cycles() == [0]


@pytest.mark.slow
def test_a_flapping_node_does_not_restart_a_healthy_job_again_and_again(cluster: Cluster) -> None:
    """It comes: the job takes it in. It vanishes: the job continues without. It returns too soon: it has to wait."""
    script = cluster.script(TRAINS)
    a = cluster.launch("a", script, nnodes="1:2", node_timeout=QUICK)
    a.hear("trains", 0)
    b = cluster.launch("b", script, nnodes="1:2", node_timeout=QUICK)
    a.hear("starts on a in 4", 1), b.hear("trains", 1)
    b.vanish()
    a.hear("starts on a in 2", 2)
    again = cluster.launch("b", script, nnodes="1:2", node_timeout=QUICK)
    again.wait_for("joined during cycle 2; it will be added at the next restart")
    _let_pass(4.0)
    cluster.tell("finish")
    a.end(0), again.end(0)
    assert a.restarts() == [(1, 0), (2, 1)], "that a node joins spends nothing, that one is lost does"
    assert again.cycles() == []


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += AHEAD;
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
"""


@pytest.fixture
def clock_ahead(tmp_path: Path) -> str:
    """A library to preload: its wall clock is 60 s ahead. (Time namespaces cannot shift the wall clock.)"""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a shifted clock needs a C compiler")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-DAHEAD=60", "-o", str(library), str(source), "-ldl"], check=True
    )
    return str(library)


FAILS_ONCE = (
    """
import time as clock
say("clock", int(clock.time()))
if CYCLE == 0 and RANK == 3:
    step(3)
    sys.exit(3)
"""
    + TRAINS
)


@pytest.mark.slow
def test_clocks_that_are_60_seconds_apart(cluster: Cluster, clock_ahead: str) -> None:
    """It is found before the ranks start. The restart that is due happens, no other one does: nothing between nodes is
    decided by wall clocks."""
    script = cluster.script(FAILS_ONCE)
    a = cluster.launch("a", script, env={"LD_PRELOAD": clock_ahead}, node_timeout=QUICK)
    a.wait_for("waits for other nodes to join")  # its time is in the store
    b = cluster.launch("b", script, node_timeout=QUICK)
    b.wait_for(r"health of this node: clock: the clock of node \S+ is [56]\d\.\d s ahead of this one")
    a.hear("trains", 1), b.hear("trains", 1)
    there = int(a.wait_for(r"cycle 1 clock (\d+)").group(1))
    assert there - time.time() > 0, "the shifted clock really is"
    _let_pass(2 * QUICK + 1)
    cluster.tell("finish")
    a.end(0), b.end(0)
    assert a.restarts() == b.restarts() == [(1, 1)]


@pytest.mark.slow
def test_torchs_static_rendezvous_gives_ranks_by_node_rank(cluster: Cluster) -> None:
    """And the ranks have the environment that the user gave them: none of torch's switches that we need."""
    script = str(cluster.script('say("has", [name for name in os.environ if "SHARE" in name])' + TRAINS))

    def flags(rank: int) -> list[str]:
        where = ["--master-addr", "localhost", "--master-port", str(cluster.port)]
        return ["--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(rank), *where, script]

    b, a = cluster.command("b", *flags(1)), cluster.command("a", *flags(0))
    assert a.hear("trains", 0) == {0, 1}
    assert b.hear("trains", 0) == {2, 3}
    assert a.hear(r"has \[\]", 0) | b.hear(r"has \[\]", 0) == {0, 1, 2, 3}
    cluster.tell("finish")
    a.end(0), b.end(0)


EXCLUDES_THE_HOST = """
client = connect()
step(1)
if CYCLE == 0 and NODE == "a" and LOCAL == 1:
    request(client, "ExcludeThisNode", "a sick GPU")
if CYCLE == 0:
    wait()
until("finish")
"""


@pytest.mark.slow
def test_an_excluded_node_that_hosts_the_rendezvous_stays_for_it(cluster: Cluster) -> None:
    a, b = cluster.pair(EXCLUDES_THE_HOST, nnodes="1:2")
    a.wait_for("continues to host the rendezvous, without ranks")
    assert b.hear("starts on b in 2", 1) == {0, 1}
    assert a.ranks() == []
    cluster.tell("finish")
    b.end(0), a.end(0)
    assert a.cycles() == [0] and b.cycles() == [0, 1]


@pytest.mark.slow
def test_an_excluded_host_does_not_stay_for_nobody(cluster: Cluster) -> None:
    a, b = cluster.pair(EXCLUDES_THE_HOST, nnodes="1:2", node_timeout=1)
    b.hear("starts on b in 2", 1)
    b.vanish()
    assert "so it no longer hosts the rendezvous" in a.end(0)


def test_a_node_that_reaches_nobody_says_where_it_tries_and_leaves_when_told(cluster: Cluster) -> None:
    b = cluster.launch("b", cluster.script('say("started")'))
    where = rf"localhost:{cluster.port} \(check that node 0 is up, the address and the port\)"
    b.wait_for(rf"node \S+:{b.pid} tries to reach the rendezvous store at {where}$")
    assert b.spawned.stop(signal.SIGTERM) == 0
    assert b.spawned.err().count("tries to reach") == 1 and not b.spawned.out()


@pytest.mark.slow
def test_both_launchers_say_that_they_were_given_different_numbers_of_nodes(cluster: Cluster) -> None:
    script = cluster.script('say("started")')
    a = cluster.launch("a", script, nnodes="2")
    a.wait_for("waits for other nodes")
    b = cluster.launch("b", script, nnodes="3")
    b.wait_for(
        rf"node \S+:{b.pid} was started with --nnodes 3, node \S+:{a.pid} with --nnodes 2: the job may never"
    )
    a.wait_for(
        rf"node \S+:{a.pid} was started with --nnodes 2, node \S+:{b.pid} with --nnodes 3: the job may never"
    )
    for node in b, a:
        node.spawned.stop(signal.SIGTERM)
        assert node.spawned.err().count("was started with") == 1
