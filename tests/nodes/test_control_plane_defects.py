"""Former defects of the control plane of several nodes, each from outside: exit codes, output and journals.

Does not cover: cycles without end that never begin, and a launcher whose main thread hangs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore

from tests.cluster import QUICK, TRAINS, Cluster, HostNames, Node, cut
from tests.processes import Spawner, wait_until


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


IGNORE_SIGTERM = """
client = connect()
if RANK < 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
step(1)
if RANK == 0:
    client.start_section("reading")
wait()
"""


@pytest.mark.slow
def test_ranks_that_ignore_sigterm_share_one_grace(cluster: Cluster) -> None:
    """Two ranks ignore SIGTERM, and one of them hangs: both are killed one grace period later."""
    signals = "--ft-rank-termination-signal", "SIGTERM", "--workers-stop-timeout", "6"
    sections = "--ft-rank-section-timeouts", "reading:0.7"
    node = cluster.command(
        "a", "--nproc-per-node", "3", *signals, *sections, str(cluster.script(IGNORE_SIGTERM))
    )
    node.spawned.wait()
    times = [each["mono"] for each in node.journal("verdict", "rank_exit")]
    require(len(times) == 4, "three exits, and the verdict of a hang")
    assert max(times) - min(times) < 2 * 6 - 0.5


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
def test_node_order_follows_the_variable(spawn: Spawner, tmp_path: Path) -> None:
    """The scheduler's number of the node counts, not its name; here each launcher finds it in another variable."""
    hosts = HostNames(a="node1", b="node2")
    numbers = {"SLURM_PROCID": ("1", ""), "GROUP_RANK": ("", "0")}
    assert ranks_of_b(spawn, tmp_path, hosts, **numbers) == {0, 1}


@pytest.mark.slow
def test_node_order_ignores_variables_when_off(spawn: Spawner, tmp_path: Path) -> None:
    """`use_infra_group_rank: false`: the names count, and node2 comes before node10 as in the scheduler's list."""
    hosts = HostNames(a="node10", b="node2")
    variables = {"SLURM_PROCID": ("0", "1"), "GROUP_RANK": ("0", "1")}
    off = {"PET_FT_USE_INFRA_GROUP_RANK": ("false", "false")}
    assert ranks_of_b(spawn, tmp_path, hosts, **variables, **off) == {0, 1}


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


@pytest.mark.slow
def test_unreadable_cycle_record_loses_no_node(cluster: Cluster) -> None:
    """Another program uses the key. All ranks start again, and the check of the nodes before that finds that a
    clock is ahead.

    What any text is read as: tests/control/test_records.py.
    """
    a, b = cluster.pair(TRAINS, node_timeout=QUICK)
    a.hear("trains", 0)
    store = PrefixStore("holdfast/job", TCPStore("127.0.0.1", cluster.port, is_master=False))
    store.set("clock", json.dumps({"node": "other", "at": time.time() + 3600.0}))
    store.set("cycle/1", "no record")

    def broken() -> bool:
        return any("Exception in thread" in node.spawned.err() for node in (a, b))

    wait_until(lambda: ended(a, b) or train_again(a, b) or broken(), what="what follows from the record")
    assert not broken(), f"a thread of a launcher has ended: {a.spawned.err()}{b.spawned.err()}"
    ahead = "health of this node: clock: the clock of node other is "
    wait_until(lambda: ended(a, b) or any(ahead in node.spawned.err() for node in (a, b)), what=ahead)
    assert train_again(a, b) and not ended(a, b)
    cluster.tell("finish")
    assert a.spawned.wait() == b.spawned.wait()
    for node in a, b:
        assert not re.search("NODE LOST|rendezvous is gone", node.spawned.err())


@pytest.mark.slow
def test_node_that_cannot_start_ranks_ends_the_job(cluster: Cluster, tmp_path: Path) -> None:
    """At a restart, the log folder of one of two nodes has become a file. All launchers end, and each names that node
    and the cause."""
    script, logs = cluster.script(TRAINS), tmp_path / "logs"
    a = cluster.launch("a", script, node_timeout=QUICK)
    b = cluster.launch("b", script, "--log-dir", str(logs), "--redirects", "3", node_timeout=QUICK)
    a.hear("trains", 0)
    shutil.rmtree(logs)
    logs.touch()
    os.kill(a.journal("rank_start")[0]["pid"], signal.SIGKILL)
    b.wait_for("Not a directory")
    for node in a, b:
        errors = node.end(1)
        assert f"{socket.gethostname()}:{b.pid}" in errors
        assert "Not a directory" in errors


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
        wait_until(lambda: ended(a), ceiling=12.0)  # it must not
    b.spawned.send_signal(signal.SIGCONT)
    assert (a.spawned.wait(), b.spawned.wait()) == (0, 0)
