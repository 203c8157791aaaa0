"""The exit code of every launcher of a job, for each ending of the table: real jobs of one and of three nodes.

A job expects an :class:`Outcome` of each launcher, and the code is the table's. Endings without a job here are in
`ELSEWHERE`, with the test that has them.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.exit_codes import Outcome
from tests.monitor.job import Freezer, freezer
from tests.nodes.conftest import QUICK, Cluster, Node
from tests.processes import wait_until

__all__ = ["freezer"]

PREEMPTED_CODE = 75
PROGRAM = """
what, where = os.environ["ENDS"].split("@")
is_here = LOCAL == 1 and NODE == where
if what in ("ExcludeThisNode", "ShutdownWorkload"):
    from holdfast.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest
    client = RankMonitorClient()
    client.init_workload_monitoring()
step(1)
say("trains")
if is_here and CYCLE == 0 and what in ("ExcludeThisNode", "ShutdownWorkload"):
    client.send_workload_control_request(WorkloadControlRequest(WorkloadAction[what], "a sick GPU"))
    wait()
if NODE == where:
    until("begin")
if is_here and what == "exit":
    sys.exit(3)
if is_here and what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if is_here and what == "once" and CYCLE == 0:
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
    """Launchers of one job; a job of one node has no rendezvous."""

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
            if nodes > 1:
                self.nodes[name] = cluster.launch(name, script, *own, env=env, **options)
            else:
                count = "--nproc-per-node", "2", "--max-restarts", str(options["restarts"])
                self.nodes[name] = cluster.command(name, *count, *own, str(script), env=env)

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

    def wait_for_spare(self) -> None:
        """Wait until one launcher waits as a spare."""

        def is_there() -> bool:
            return any("is a spare" in node.spawned.err() for node in self.nodes.values())

        wait_until(is_there, what="a spare node")

    def end(self, **expected: Outcome | int) -> None:
        """All launchers end, with the codes that the table has for these outcomes, or with these codes."""
        found = {name: node.spawned.wait() for name, node in self.nodes.items()}
        codes = {name: each if isinstance(each, int) else each.code for name, each in expected.items()}
        told = "\n".join(f"{name}:\n{node.spawned.err()[-1500:]}" for name, node in self.nodes.items())
        assert found == codes, told

    def end_all(self, expected: Outcome | int) -> None:
        """All launchers end alike."""
        self.end(**dict.fromkeys(self.nodes, expected))


one_and_three = pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.slow)])


@one_and_three
def test_success_of_all_ranks(cluster: Cluster, nodes: int) -> None:
    """Of three nodes one is a spare that is never used."""
    job = Job(cluster, nodes, "success@", nnodes="2")
    if nodes == 3:
        job.wait_for_spare()
    job.tell("finish")
    job.end_all(Outcome.SUCCEEDED)


@one_and_three
def test_preemption_of_the_host_of_the_store(cluster: Cluster, nodes: int) -> None:
    job = Job(cluster, nodes, "signal@", "--ft-preempted-exit-code", str(PREEMPTED_CODE))
    job.train()
    job["a"].spawned.send_signal(signal.SIGTERM)
    job.end_all(PREEMPTED_CODE)


@one_and_three
def test_interrupt_of_all_launchers(cluster: Cluster, nodes: int) -> None:
    job = Job(cluster, nodes, "signal@")
    job.train()
    for node in job.nodes.values():
        node.spawned.send_signal(signal.SIGINT)
    job.end_all(Outcome.INTERRUPTED)


@pytest.mark.slow
def test_preempted_and_excluded_nodes_of_a_job(cluster: Cluster) -> None:
    """One node is excluded, another one gets a signal: the job succeeds on the third."""
    job = Job(
        cluster,
        3,
        "ExcludeThisNode@b",
        "--ft-preempted-exit-code",
        str(PREEMPTED_CODE),
        nnodes="1:3",
    )
    for name in "ac":
        job[name].hear("trains", 1)
    job["c"].spawned.send_signal(signal.SIGTERM)
    job["a"].hear("starts on a in 2", 2)
    job.tell("finish")
    job.end(a=Outcome.SUCCEEDED, b=Outcome.EXCLUDED, c=PREEMPTED_CODE)


@one_and_three
def test_exclusion_that_leaves_too_few_nodes(cluster: Cluster, nodes: int) -> None:
    job = Job(cluster, nodes, "ExcludeThisNode@" + "abc"[nodes - 1], restarts=3)
    job.end_all(Outcome.EXCLUDED_LAST)
    assert job.last.journal("node_excluded")


@one_and_three
def test_requested_shutdown_of_the_job(cluster: Cluster, nodes: int) -> None:
    job = Job(cluster, nodes, "ShutdownWorkload@" + "abc"[nodes - 1], restarts=3)
    job.end_all(Outcome.SHUT_DOWN)


@one_and_three
@pytest.mark.parametrize(
    ("what", "code"), [("exit", 3), ("kill", 128 + signal.SIGKILL), ("both", Outcome.RANKS_DISAGREE)]
)
def test_failed_ranks_without_a_restart(cluster: Cluster, nodes: int, what: str, code: Outcome | int) -> None:
    job = Job(cluster, nodes, f"{what}@{'abc'[nodes - 1]}")
    job.train()
    if what == "both":  # the launcher finds both ends at once
        launcher, ranks = job.last.spawned, job.last.ranks()
        launcher.send_signal(signal.SIGSTOP)
        job.tell("begin")
        wait_until(lambda: all(rank.status() == "zombie" for rank in ranks), what="both ranks ended")
        launcher.send_signal(signal.SIGCONT)
    job.tell("begin")
    job.end_all(code)


@pytest.mark.slow
def test_lost_node_without_a_restart(cluster: Cluster) -> None:
    job = Job(cluster, 3, "loss@", nnodes="2:3", node_timeout=QUICK)
    job.train()
    job["c"].vanish()
    job.end(a=Outcome.NO_RESTART_LEFT, b=Outcome.NO_RESTART_LEFT, c=-signal.SIGKILL)


@pytest.mark.slow
def test_lost_host_of_the_store(cluster: Cluster) -> None:
    job = Job(cluster, 3, "loss@", nnodes="1:3", restarts=3, node_timeout=QUICK)
    job.train()
    job["a"].vanish()
    job.end(a=-signal.SIGKILL, b=Outcome.HOST_LOST, c=Outcome.HOST_LOST)


@one_and_three
def test_ranks_that_cannot_be_started(cluster: Cluster, nodes: int, tmp_path: Path) -> None:
    """At a restart the log folder of the last node has become a file; the other two continue."""
    logs, name = tmp_path / "logs", "abc"[nodes - 1]
    options = {"nnodes": "2:3"} if nodes == 3 else {}
    flags = {name: ("--log-dir", str(logs), "--redirects", "3")}
    job = Job(cluster, nodes, "once@a", flags=flags, restarts=3, **options)
    wait_until(lambda: len(list(logs.rglob("stdout.log"))) == 2, what="the last node's ranks have started")
    shutil.rmtree(logs)
    logs.touch()
    job.tell("begin")
    if nodes == 3:
        for other in "ab":
            job[other].hear("trains", 2)
        job.tell("finish")
    job.end(**dict.fromkeys("ab"[: nodes - 1], Outcome.SUCCEEDED), **{name: Outcome.NOT_STARTED})
    assert job.last.journal("job_lost")


@pytest.mark.slow
def test_rank_that_sigkill_does_not_end(cluster: Cluster, freezer: Freezer) -> None:
    """On one of three nodes. tests/monitor/test_supervision_of_a_job.py has a job of one node."""
    if not freezer.is_v1:
        pytest.skip("a process frozen by cgroup v2 dies of SIGKILL")
    job = Job(cluster, 3, "exit@c", "--workers-stop-timeout", "1", restarts=3, nnodes="2:3")
    job.train()
    (healthy,) = [rank for rank in job.last.ranks() if rank.environ()["LOCAL_RANK"] == "0"]
    freezer.seize(healthy.pid)
    freezer.freeze()
    job.tell("begin")
    for other in "ab":
        job[other].hear("trains", 2)
    job.tell("finish")
    job.end(a=Outcome.SUCCEEDED, b=Outcome.SUCCEEDED, c=Outcome.STUCK)
    assert job.last.journal("job_lost")


@pytest.mark.slow
@pytest.mark.parametrize("nnodes", ["2", "3"])
def test_rendezvous_that_times_out(cluster: Cluster, nnodes: str) -> None:
    """Two launchers of a job of three nodes, and a launcher without the others."""
    script = cluster.script(PROGRAM)
    names = "ab"[: int(nnodes) - 1]
    env = {"ENDS": "success@"}
    nodes = [cluster.launch(name, script, nnodes=nnodes, conf="join_timeout=3", env=env) for name in names]
    for node in nodes:
        assert node.spawned.wait() == Outcome.TOO_FEW_NODES.code
    assert nodes[0].journal("job_lost")


def test_host_of_the_store_that_cannot_be_reached(cluster: Cluster) -> None:
    b = cluster.launch("b", cluster.script(""), conf="read_timeout=1")
    assert b.spawned.wait() == Outcome.UNREACHABLE.code


@pytest.mark.parametrize("nnodes", ["1", "3"])
def test_usage_error_of_a_launcher(cluster: Cluster, nnodes: str) -> None:
    a = cluster.launch("a", cluster.script(""), "--ft-rank-heartbeat-timeout", "soon", nnodes=nnodes)
    assert a.spawned.wait() == Outcome.USAGE.code


ELSEWHERE = {
    Outcome.CALLED_OFF: "tests/control/test_records.py",
    Outcome.NO_PROGRESS: "tests/nodes/test_no_progress.py",
    Outcome.SAME_FAILURE: "tests/nodes/test_no_progress.py",
    Outcome.LAUNCHER_FAILED: "tests/control/test_one_node.py",
    Outcome.NO_BOARDS: "tests/launcher/test_full_tmpfs.py",
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
