"""The exit code of every launcher of a job of several nodes, for the endings of the table.

A job expects an :class:`Outcome` of each launcher, and the code is the table's. Endings without a job here are in
`ELSEWHERE`, with the test that has them.
"""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.exit_codes import Outcome
from holdfast.journal.incidents import incidents
from holdfast.journal.reader import read_run
from tests.cluster import QUICK, Cluster, Node
from tests.monitor.job import Freezer, freezer
from tests.processes import wait_until

__all__ = ["freezer"]

PREEMPTED_CODE = 75
PREEMPTED = "--ft-preempted-exit-code", str(PREEMPTED_CODE)
PROGRAM = """
what, where = os.environ["ENDS"].split("@")
is_here = LOCAL == 1 and NODE == where
if what in ("ExcludeThisNode", "ShutdownWorkload"):
    client = connect()
step(1)
say("trains")
if is_here and CYCLE == 0 and what in ("ExcludeThisNode", "ShutdownWorkload"):
    request(client, what, "a sick GPU")
    wait()
if NODE == where:
    until("begin")
if is_here and (what == "exit" or what == "once" and CYCLE == 0):
    sys.exit(3)
if NODE == where and what == "both":
    sys.exit(3 + LOCAL)
until("finish")
"""
"""All ranks take a step; then it ends as $ENDS has it: what@node. The others wait until the test says "finish"."""


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """How ranks are started is not the topic here, and a zygote imports torch."""
    monkeypatch.setenv("PET_FT_WARM_START", "off")


class Job:
    """Launchers of one job."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: int,
        ends: str,
        *common: str,
        flags: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        self.tell, self.nodes = cluster.tell, dict[str, Node]()
        script, env = cluster.script(PROGRAM), {"ENDS": ends}
        options = {"restarts": 0, "nnodes": str(nodes), **options}
        for name in "abc"[:nodes]:
            own = *common, *(flags or {}).get(name, ())
            self.nodes[name] = cluster.launch(name, script, *own, env=env, **options)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def last(self) -> Node:
        """The node where something happens: it does not host the store where there are several."""
        return self.nodes[max(self.nodes)]

    def train(self) -> None:
        """Wait until the ranks of all nodes have taken a step."""
        for node in self.nodes.values():
            node.hear("trains", 0)

    def end(self, **expected: Outcome | int) -> None:
        """All launchers end, with the codes that the table has for these outcomes, or with these codes."""
        found = {name: node.spawned.wait() for name, node in self.nodes.items()}
        codes = {name: each if isinstance(each, int) else each.code for name, each in expected.items()}
        told = "\n".join(f"{name}:\n{node.spawned.err()[-1500:]}" for name, node in self.nodes.items())
        assert found == codes, told

    def end_all(self, expected: Outcome | int) -> None:
        """All launchers end alike."""
        self.end(**dict.fromkeys(self.nodes, expected))


@pytest.mark.slow
def test_interrupt_of_all_launchers(cluster: Cluster) -> None:
    job = Job(cluster, 2, "signal@")
    job.train()
    for node in job.nodes.values():
        node.spawned.send_signal(signal.SIGINT)
    job.end_all(Outcome.INTERRUPTED)


@pytest.mark.slow
def test_preempted_and_excluded_nodes_of_a_job(cluster: Cluster) -> None:
    """One node is excluded, another one gets a signal: the job succeeds on the third."""
    job = Job(cluster, 3, "ExcludeThisNode@b", *PREEMPTED, nnodes="1:3")
    for name in "ac":
        job[name].hear("trains", 1)
    job["c"].spawned.send_signal(signal.SIGTERM)
    job["a"].hear("starts on a in 2", 2)
    job.tell("finish")
    job.end(a=Outcome.SUCCEEDED, b=Outcome.EXCLUDED, c=PREEMPTED_CODE)
    said = job["b"].spawned.err()
    assert "leaves the job: rank 3" in said and "a sick GPU" in said
    assert job["a"].restarts()[0] == (1, 0), "no restart of the budget is spent"


@pytest.mark.slow
def test_exclusion_that_leaves_too_few_nodes(cluster: Cluster) -> None:
    job = Job(cluster, 2, "ExcludeThisNode@b", restarts=3)
    job.end_all(Outcome.EXCLUDED_LAST)
    assert job.last.journal("node_excluded")


@pytest.mark.slow
def test_two_ranks_that_fail_at_once_with_different_codes(cluster: Cluster) -> None:
    """The launcher of their node finds both ends at once."""
    job = Job(cluster, 2, "both@b")
    job.train()
    launcher, ranks = job.last.spawned, job.last.ranks()
    launcher.send_signal(signal.SIGSTOP)
    job.tell("begin")
    wait_until(lambda: all(rank.status() == "zombie" for rank in ranks), what="both ranks ended")
    launcher.send_signal(signal.SIGCONT)
    job.end_all(Outcome.RANKS_DISAGREE)


@pytest.mark.slow
def test_lost_node_without_a_restart(cluster: Cluster) -> None:
    job = Job(cluster, 2, "loss@", nnodes="1:2", node_timeout=QUICK)
    job.train()
    job["b"].vanish()
    job.end(a=Outcome.NO_RESTART_LEFT, b=-signal.SIGKILL)
    assert "NODE LOST" in job["a"].spawned.err() and job["a"].cycles() == [0]


@pytest.mark.slow
def test_lost_host_of_the_store(cluster: Cluster) -> None:
    job = Job(cluster, 2, "loss@", nnodes="1:2", restarts=3, node_timeout=QUICK)
    job.train()
    job["a"].vanish()
    job.end(a=-signal.SIGKILL, b=Outcome.HOST_LOST)
    (incident,) = incidents(read_run(str(job["b"].run_dir)))
    assert f"no process listens at localhost:{cluster.port} any more" in incident.what


@pytest.mark.slow
@pytest.mark.parametrize("nnodes", ["1:2", "2"])
def test_ranks_that_cannot_be_started(cluster: Cluster, tmp_path: Path, nnodes: str) -> None:
    """At a restart the log folder of the last node has become a file; the other one continues if it may."""
    logs = tmp_path / "logs"
    flags = {"b": ("--log-dir", str(logs), "--redirects", "3")}
    job = Job(cluster, 2, "once@a", flags=flags, restarts=3, nnodes=nnodes)
    wait_until(lambda: len(list(logs.rglob("stdout.log"))) == 2, what="the last node's ranks have started")
    shutil.rmtree(logs)
    logs.touch()
    job.tell("begin")
    if nnodes == "1:2":
        job["a"].hear("trains", 2)
        job.tell("finish")
        job.end(a=Outcome.SUCCEEDED, b=Outcome.NOT_STARTED)
        assert job.last.journal("job_lost")
    else:
        job.end_all(Outcome.NOT_STARTED)
    for node in job.nodes.values():
        said = node.spawned.err()
        assert f"{socket.gethostname()}:{job.last.pid}" in said and "Not a directory" in said


@pytest.mark.slow
def test_rank_that_sigkill_does_not_end(cluster: Cluster, freezer: Freezer) -> None:
    """On one of two nodes. tests/monitor/test_supervision.py has a job of one node."""
    if not freezer.is_v1:
        pytest.skip("a process frozen by cgroup v2 dies of SIGKILL")
    job = Job(cluster, 2, "exit@b", "--workers-stop-timeout", "1", restarts=3, nnodes="1:2")
    job.train()
    (healthy,) = [rank for rank in job.last.ranks() if rank.environ()["LOCAL_RANK"] == "0"]
    freezer.seize(healthy.pid)
    freezer.freeze()
    job.tell("begin")
    job["a"].hear("trains", 2)
    job.tell("finish")
    job.end(a=Outcome.SUCCEEDED, b=Outcome.STUCK)
    assert job.last.journal("job_lost")


@pytest.mark.slow
def test_rendezvous_that_times_out(cluster: Cluster) -> None:
    """A launcher of a job of two nodes, without the other one."""
    a = cluster.launch("a", cluster.script(PROGRAM), conf="join_timeout=3")
    assert a.spawned.wait() == Outcome.TOO_FEW_NODES.code
    assert a.journal("job_lost")


ELSEWHERE = {
    Outcome.USAGE: "tests/launcher/test_exit_codes.py",
    Outcome.CALLED_OFF: "tests/control/test_records.py",
    Outcome.NO_PROGRESS: "tests/nodes/test_restart_together.py",
    Outcome.SAME_FAILURE: "tests/launcher/test_restarts.py",
    Outcome.INTERRUPTED: "tests/launcher/test_preemption.py",
    Outcome.UNREACHABLE: "tests/launcher/test_exit_codes.py",
    Outcome.LAUNCHER_FAILED: "tests/control/test_one_node.py",
    Outcome.NO_BOARDS: "tests/launcher/test_hung_disks.py",
}
WITH_CODES_OF_RANKS = {Outcome.PREEMPTED, Outcome.RANKS_FAILED, Outcome.RANKS_KILLED}


def test_every_outcome_has_a_test() -> None:
    text = Path(__file__).read_text()
    missing = {
        each
        for each in set(Outcome) - set(ELSEWHERE) - WITH_CODES_OF_RANKS
        if f"Outcome.{each.name}" not in text
    }
    assert missing == set()


@pytest.mark.slow
def test_requested_shutdown_of_the_job(cluster: Cluster) -> None:
    job = Job(cluster, 2, "ShutdownWorkload@b", restarts=3)
    job.end_all(Outcome.SHUT_DOWN)
    assert "shutting the whole job down: rank 3" in job["b"].spawned.err()
    assert "the job ends with exit code 93" in job["a"].spawned.err()
    assert job["a"].cycles() == job["b"].cycles() == [0]
