"""Nodes that come, go, return, wait as spares, or seem to be gone: a healthy job does as little as possible."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.control.records import JOIN_INTERVAL
from holdfast.journal.incidents import incidents
from holdfast.journal.reader import read_run
from tests.cluster import QUICK, TRAINS, Cluster, HostNames, cut, gone
from tests.launcher.test_metrics import Values, samples
from tests.processes import Spawner, wait_until

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
    joined, lost, *later = a.journal("restart")
    spent = [record["restarts_used"] for record in (joined, lost)]
    assert spent == [0, 1], "that a node joins spends nothing, that one is lost does"
    gaps = [record["t"] - joined["t"] for record in later]  # a slow machine may have come that far
    assert all(gap > JOIN_INTERVAL - QUICK for gap in gaps), "it returned too soon"


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
    b.wait_for(r"health of this node: clock: the clock of node \S+ is \d+\.\d s ahead of this one")
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


def test_a_node_that_reaches_nobody_says_where_it_tries_and_leaves_when_told(cluster: Cluster) -> None:
    b = cluster.launch("b", cluster.script('say("started")'))
    where = rf"localhost:{cluster.port} \(check that node 0 is up, the address and the port\)"
    b.wait_for(rf"node \S+:{b.pid} tries to reach the rendezvous store at {where}$")
    assert b.spawned.stop(signal.SIGTERM) == 0
    assert b.spawned.err().count("tries to reach") == 1 and not b.spawned.out()


# -- more launchers than the job has places: the surplus waits, and leaves with the job ----------------------


FAILS_WHEN_TOLD = """
def save(number, frame):
    time.sleep(2.0)
    os._exit(0)
if CYCLE == 0 and NODE == "a":  # leaves later than a spare can come
    signal.signal(signal.SIGTERM, save)
for number in range(5):
    step(number)
say("trains")
if CYCLE == 0 and RANK == 3:
    until("fail")
    sys.exit(3)
until("finish")
"""


def metrics(cluster: Cluster, name: str) -> str:
    return f"--ft-metrics-file={cluster.folder}/{name}.prom"


def values(cluster: Cluster, name: str) -> Values:
    file = cluster.folder / f"{name}.prom"
    return samples(file.read_text()) if file.exists() else {}


def waits_for_one(cluster: Cluster, name: str) -> bool:
    return values(cluster, name)["holdfast_spare_nodes",] == 1


@pytest.mark.slow
def test_a_third_launcher_parks_and_leaves_with_the_job(cluster: Cluster) -> None:
    """And after a restart the nodes that trained before train again: what they keep on local disks is of use. A spare
    that leaves before disturbs no node. The metrics of each node show who waits."""
    script = cluster.script(FAILS_WHEN_TOLD)
    a, b = (cluster.launch(name, script, metrics(cluster, name)) for name in "ab")
    a.hear("trains", 0)
    d = cluster.launch("d", script)
    d.wait_for("is a spare: the job runs on 2 nodes, this one waits")
    c = cluster.launch("c", script, metrics(cluster, "c"))
    assert d.spawned.stop(signal.SIGTERM) == 0
    c.wait_for("is a spare: the job runs on 2 nodes, this one waits")
    assert a.cycles() == b.cycles() == [0]
    wait_until(lambda: values(cluster, "c").get(("holdfast_job_state", "spare")))
    for name in "ab":
        wait_until(partial(waits_for_one, cluster, name))
        assert values(cluster, name)["holdfast_job_state", "running"] == 1
    cluster.tell("fail")
    assert a.hear("trains", 1) | b.hear("trains", 1) == {0, 1, 2, 3}
    c.spawned.wait_for(lambda: c.spawned.err().count("is a spare") == 2)
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)
    assert c.cycles() == [], "no rank of it was ever started"
    assert a.cycles() == b.cycles() == [0, 1]
    for name in "abc":
        found = values(cluster, name)
        assert found["holdfast_job_state", "ended"] == 1 and found["holdfast_exit_code",] == 0


@pytest.mark.slow
def test_spare_with_a_cut_connection_replaces_a_signalled_launcher(cluster: Cluster) -> None:
    """A scheduler takes one node back: its launcher alone gets SIGTERM, and its ranks leave. The spare, which has to
    connect again, takes the place before any timeout, as no output or journal calls the node lost."""
    script = cluster.script(TRAINS)
    a, b = (cluster.launch(name, script, node_timeout=None) for name in "ab")
    a.hear("trains", 0)
    c = cluster.launch("c", script, node_timeout=None)
    c.wait_for("is a spare")
    wait_until(lambda: cut(c.pid, cluster.port), what="a connection of the spare to the store")
    b.spawned.send_signal(signal.SIGTERM)
    assert a.hear("trains", 1) | c.hear("trains", 1) == {0, 1, 2, 3}
    for node in a, c:
        assert "NODE LOST" not in node.spawned.err() and not node.journal("node_lost")
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)


# -- a launcher dies alone, or leaves while it waits, and is started again -----------------------------------


LINKED = """
import socket
for number in range(3):
    step(number)
end = socket.socket(socket.AF_UNIX)
if RANK == 0:  # a connection between the nodes, as they have in a collective
    end.bind(f"notes/{CYCLE}")
    end.listen()
    end = end.accept()[0]
while RANK == 2 and end.connect_ex(f"notes/{CYCLE}"):
    time.sleep(0.01)
say("trains")
if RANK == 0 and not end.recv(1) and not told("finish"):
    raise RuntimeError("Connection closed by peer")  # as gloo has it
until("finish")
"""


@pytest.mark.slow
def test_a_launcher_that_was_killed_and_started_again_rejoins(cluster: Cluster) -> None:
    """Lost connections are the only sign of the death; the journal still has whose they were."""
    script = cluster.script(LINKED)
    a, b = (cluster.launch(name, script, node_timeout=QUICK) for name in "ab")
    a.hear("trains", 0), b.hear("trains", 0)
    ranks = b.ranks()
    b.spawned.stop(signal.SIGKILL)
    a.wait_for("restarting all 2 local ranks")
    again = cluster.launch("b", script, node_timeout=QUICK)
    assert a.hear("trains", 1) | again.hear("trains", 1) == {0, 1, 2, 3}
    assert all(gone(rank) for rank in ranks), "its monitor ended what it left"
    cluster.tell("finish")
    a.end(0), again.end(0)
    assert a.restarts() == [(1, 1)]
    assert again.cycles() == [1]
    (incident,) = incidents(read_run(str(a.run_dir)))
    assert (incident.kind, incident.node) == ("node lost", f"{socket.gethostname()}:{b.pid}")
    assert "rank 0 failed: RuntimeError" in incident.what


@pytest.mark.slow
def test_launchers_that_leave_or_die_while_they_wait_are_not_counted(cluster: Cluster) -> None:
    """One that is asked to leave writes so, and is not waited for. One that dies does not acknowledge the membership;
    no restart is used, as no rank had started."""
    script = cluster.script(TRAINS)
    a, b = (cluster.launch(name, script, nnodes="3", node_timeout=QUICK) for name in "ab")
    b.wait_for("waits for other nodes to join cycle 0")
    assert b.spawned.stop(signal.SIGTERM) == 0
    c = cluster.launch("c", script, nnodes="3", node_timeout=QUICK)
    c.wait_for("waits for other nodes to join cycle 0")
    assert "did not answer" not in a.spawned.err(), "no node had to wait for b"
    c.spawned.stop(signal.SIGKILL)
    d, e = (cluster.launch(name, script, nnodes="3", node_timeout=QUICK) for name in "de")
    ranks = a.hear("trains", 1) | d.hear("trains", 1) | e.hear("trains", 1)
    assert ranks == {0, 1, 2, 3, 4, 5}
    assert any(" of cycle 0 did not answer" in node.spawned.err() for node in (a, d, e))
    cluster.tell("finish")
    for node in a, d, e:
        node.end(0)
        assert node.cycles() == [1]
        assert node.restarts() == []


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


@pytest.mark.slow
def test_a_spare_leaves_with_a_job_that_fails(cluster: Cluster) -> None:
    script = cluster.script(FAILS_WHEN_TOLD)
    a, b = (cluster.launch(name, script, restarts=0) for name in "ab")
    a.hear("trains", 0)
    c = cluster.launch("c", script)
    c.wait_for("is a spare")
    cluster.tell("fail")
    assert "no restart left (0 of 0 used)" in b.end(3)
    for node in a, c:
        assert "the job ends with exit code 3; reason from node" in node.end(3)


# -- which node comes first ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "variables"),
    [
        (("node1", "node2"), {"SLURM_PROCID": ("1", ""), "GROUP_RANK": ("", "0")}),
        (
            ("node10", "node2"),
            {
                "SLURM_PROCID": ("0", "1"),
                "GROUP_RANK": ("0", "1"),
                "PET_FT_USE_INFRA_GROUP_RANK": ("false", "false"),
            },
        ),
    ],
    ids=["the scheduler's number", "the name where use_infra_group_rank is false"],
)
def test_node_order_follows(
    spawn: Spawner, tmp_path: Path, names: tuple[str, str], variables: dict[str, tuple[str, str]]
) -> None:
    """Without --node-rank: by the variable that each launcher finds, else as in the scheduler's list: b is first."""
    hosts = HostNames(a=names[0], b=names[1])
    attempt = ["sh", "-c", '"$@"', "sh", *hosts.inside("a"), "true"]  # by a shell: `unshare` may be missing
    if subprocess.run(attempt, capture_output=True).returncode:
        pytest.skip("a host name for each launcher needs root and the command `unshare`")
    cluster = Cluster(spawn, tmp_path, hosts)
    script, nodes = str(cluster.script("")), []
    for number, name in enumerate("ab"):
        endpoint = f"{cluster.address('a')}:{cluster.port}"
        flags = f"--rdzv-backend c10d --rdzv-id job --rdzv-endpoint {endpoint} --nnodes 2 --nproc-per-node 2"
        host = "--rdzv-conf", f"is_host={int(name == 'a')}"
        env = {variable: values[number] for variable, values in variables.items()}
        nodes.append(cluster.command(name, *flags.split(), *host, script, env=env))
    assert nodes[1].hear("starts", 0) == {0, 1}
    for node in nodes:
        node.end(0)
