"""Former defects of the control plane of several nodes, each from outside: exit codes, output and journals.

Does not cover: cycles without end that never begin, and a launcher whose main thread hangs.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore

from tests.nodes.conftest import QUICK, TRAINS, Cluster, Network, Node
from tests.processes import Spawner, wait_until

PIDFD_GETFD = 438  # pidfd_getfd(2): the same number on every architecture


def happens(what: Callable[[], object], seconds: float) -> bool:
    """Whether this becomes true within so many seconds, for a claim that is to fail by an assertion."""
    with suppress(pytest.fail.Exception):
        return bool(wait_until(what, ceiling=seconds))
    return False


def require(condition: bool, what: str) -> None:
    """What a claim presupposes. Without it the test has failed, and has not shown the defect."""
    if not condition:
        pytest.fail(f"missing: {what}")


def ended(*nodes: Node) -> bool:
    """Whether all these launchers have ended."""
    return all(node.spawned.returncode is not None for node in nodes)


def train_again(*nodes: Node) -> bool:
    """Whether four ranks of these nodes train in one later cycle than the first."""
    output = "".join(node.spawned.out() for node in nodes)
    found = set(re.findall(r"^rank (\d+) cycle ([1-9]\d*) trains", output, re.MULTILINE))
    cycles = [cycle for _, cycle in found]
    return any(cycles.count(cycle) == 4 for cycle in cycles)


@pytest.mark.slow
def test_spare_replaces_a_signalled_launcher(cluster: Cluster) -> None:
    """A scheduler takes one node back: its launcher alone gets SIGTERM, and its ranks leave. The spare takes the place
    before any timeout, as no output or journal calls the node lost."""
    script = cluster.script(TRAINS)
    a, b = (cluster.launch(name, script, node_timeout=None) for name in "ab")
    a.hear("trains", 0)
    c = cluster.launch("c", script, node_timeout=None)
    c.wait_for("is a spare")
    b.spawned.send_signal(signal.SIGTERM)
    wait_until(lambda: train_again(a, c), what="training with the spare")
    for node in a, c:
        assert "NODE LOST" not in node.spawned.err()
        assert not node.journal("node_lost")
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)


FAILS_WHEN_ASKED = """
number = 0
while not told("finish"):
    number += 1
    step(number)
    if number == 3:
        say("trains")
    if (CYCLE, RANK) == (0, 0) and told("fail"):
        sys.exit(3)
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_node_that_cannot_start_ranks_ends_the_job(cluster: Cluster, tmp_path: Path) -> None:
    """At a restart, the log folder of one of two nodes has become a file. All launchers end, and each names that node
    and the cause."""
    script, logs = cluster.script(FAILS_WHEN_ASKED), tmp_path / "logs"
    a = cluster.launch("a", script, node_timeout=QUICK)
    b = cluster.launch("b", script, "--log-dir", str(logs), "--redirects", "3", node_timeout=QUICK)
    a.hear("trains", 0)
    shutil.rmtree(logs)
    logs.touch()
    cluster.tell("fail")
    b.wait_for("Not a directory")
    for node in a, b:
        errors = node.end(1)
        assert f"{socket.gethostname()}:{b.pid}" in errors
        assert "Not a directory" in errors


IGNORE_SIGTERM = """
client = connect()
if RANK < 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
step(1)
if RANK == 2 and sys.argv[1] == "rank fails":
    sys.exit(3)
if RANK == 0 and sys.argv[1] == "rank hangs":
    client.start_section("reading")
wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["rank fails", "rank hangs"])
def test_ranks_that_ignore_sigterm_share_one_grace(cluster: Cluster, what: str) -> None:
    """Two ranks ignore SIGTERM. A third one fails, or one of the two hangs: both are killed one grace period later."""
    signals = "--ft-rank-termination-signal", "SIGTERM", "--workers-stop-timeout", "6"
    sections = "--ft-rank-section-timeouts", "reading:0.7"
    script = str(cluster.script(IGNORE_SIGTERM))
    node = cluster.command("a", "--nproc-per-node", "3", *signals, *sections, script, what)
    node.spawned.wait()
    times = [each["mono"] for each in node.journal("verdict", "rank_exit")]
    require(len(times) == (3 if what == "rank fails" else 4), "three exits, and the verdict of a hang")
    assert max(times) - min(times) < 2 * 6 - 0.5


class HostNames(Network):
    """Launchers of one machine and one network, each with a host name of its own."""

    def __init__(self, **names: str) -> None:
        super().__init__("")
        self._hosts = names

    def address(self, name: str) -> str:
        """The same for all: the order of the nodes must not follow from it."""
        return "127.0.0.1"

    def inside(self, name: str) -> list[str]:
        """Runs a command under the node's host name (the same process, by exec)."""
        rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        return ["unshare", "--uts", "sh", "-c", rename, self._hosts[name]]


def ranks_of_b(spawn: Spawner, folder: Path, hosts: HostNames, **variables: tuple[str, str]) -> set[int]:
    """The ranks on node `b` of a job without --node-rank; `variables` has a value for `a` and one for `b`."""
    attempt = ["sh", "-c", '"$@"', "sh", *hosts.inside("a"), "true"]  # by a shell: `unshare` may be missing
    if subprocess.run(attempt, capture_output=True).returncode:
        pytest.skip("a host name for each launcher needs root and the command `unshare`")
    cluster = Cluster(spawn, folder, hosts)
    script, nodes = str(cluster.script("")), []
    for number, name in enumerate("ab"):
        endpoint = f"{cluster.address('a')}:{cluster.port}"
        rendezvous = f"--rdzv-backend c10d --rdzv-id job --rdzv-endpoint {endpoint}".split()
        host = "--rdzv-conf", f"is_host={int(name == 'a')}"
        env = {variable: values[number] for variable, values in variables.items()}
        counts = "--nnodes", "2", "--nproc-per-node", "2"
        nodes.append(cluster.command(name, *rendezvous, *host, *counts, script, env=env))
    found = nodes[1].hear("starts", 0)
    require(not any(node.spawned.wait() for node in nodes), "an exit code of 0 from both launchers")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["SLURM_PROCID", "GROUP_RANK"])
def test_node_order_follows_the_variable(spawn: Spawner, tmp_path: Path, variable: str) -> None:
    """The scheduler's number of the node counts, not its name."""
    hosts = HostNames(a="node1", b="node2")
    assert ranks_of_b(spawn, tmp_path, hosts, **{variable: ("1", "0")}) == {0, 1}


@pytest.mark.slow
def test_node_order_ignores_variables_when_off(spawn: Spawner, tmp_path: Path) -> None:
    """`use_infra_group_rank: false`: the names count, and node2 comes before node10 as in the scheduler's list."""
    hosts = HostNames(a="node10", b="node2")
    variables = {"SLURM_PROCID": ("0", "1"), "GROUP_RANK": ("0", "1")}
    off = {"PET_FT_USE_INFRA_GROUP_RANK": ("false", "false")}
    assert ranks_of_b(spawn, tmp_path, hosts, **variables, **off) == {0, 1}


def cut(pid: int, port: int) -> int:
    """Break all TCP connections of a process to this port, as a firewall does; returns how many there were."""
    process, count = os.pidfd_open(pid), 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                copy = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, int(name), 0)
                if copy < 0:
                    pytest.skip("descriptors of another process cannot be had here: pidfd_getfd(2)")
                with socket.socket(fileno=copy) as link:
                    if link.family in (socket.AF_INET, socket.AF_INET6) and link.getpeername()[1] == port:
                        link.shutdown(socket.SHUT_RDWR)
                        count += 1
    finally:
        os.close(process)
    return count


@pytest.mark.slow
def test_spare_with_a_cut_connection_takes_a_lost_place(cluster: Cluster) -> None:
    """The host of the store is reachable all the time: the spare connects again, and replaces a node that vanishes."""
    script = cluster.script(TRAINS)
    a, b = (cluster.launch(name, script, node_timeout=QUICK) for name in "ab")
    a.hear("trains", 0)
    c = cluster.launch("c", script, node_timeout=QUICK)
    c.wait_for("is a spare")
    wait_until(lambda: cut(c.pid, cluster.port), what="a connection of the spare to the store")
    b.vanish()
    wait_until(lambda: ended(c) or train_again(a, c), what="training with the spare")
    assert not ended(c), f"the spare has ended: {c.spawned.err()}"
    cluster.tell("finish")
    a.end(0), c.end(0)


FAILS_IN_TURN = """
client = connect()
for number in range(1, 6):
    step(number)
    client.heartbeat(step=number)
if RANK == 2 * (CYCLE % 2):
    sys.exit(5)
wait()
"""


@pytest.mark.slow
def test_restart_budget_covers_failures_on_all_nodes(cluster: Cluster) -> None:
    """A bad batch at step 5, of which a rank fails, each time on the other node: no cycle makes any progress, so the
    second failure ends a job with one restart."""
    a, b = cluster.pair(FAILS_IN_TURN, "--ft-restarts-reset-on-progress", restarts=1)
    require(a.spawned.wait() == b.spawned.wait() == 5, "the exit code of the failing rank")
    assert a.cycles() == b.cycles() == [0, 1]


@pytest.mark.slow
def test_unreadable_cycle_record_loses_no_node(cluster: Cluster) -> None:
    """Another program uses the key. All ranks start again, or all launchers end alike.

    What any text is read as: tests/control/test_records.py.
    """
    a, b = cluster.pair(TRAINS, node_timeout=QUICK)
    a.hear("trains", 0)
    PrefixStore("holdfast/job", TCPStore("127.0.0.1", cluster.port, is_master=False)).set(
        "cycle/1", "no record"
    )

    def broken() -> bool:
        return any("Exception in thread" in node.spawned.err() for node in (a, b))

    wait_until(lambda: ended(a, b) or train_again(a, b) or broken(), what="what follows from the record")
    assert not broken(), f"a thread of a launcher has ended: {a.spawned.err()}{b.spawned.err()}"
    cluster.tell("finish")
    assert a.spawned.wait() == b.spawned.wait()
    for node in a, b:
        assert not re.search("NODE LOST|rendezvous is gone", node.spawned.err())


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
    happens(lambda: ended(a), 12.0)
    b.spawned.send_signal(signal.SIGCONT)
    assert (a.spawned.wait(), b.spawned.wait()) == (0, 0)
