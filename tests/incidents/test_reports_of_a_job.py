"""Incidents of real jobs, of one node and of two, and a sample of the corpus of faults: what is reported of them."""

from __future__ import annotations

import json
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.corpus import choose
from benchmarks.faults.run import HOLDFAST, Campaign
from benchmarks.faults.score import scored
from tests.cluster import Cluster
from tests.jobs import Jobs
from tests.processes import wait_until

FOUR_FAULTS = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
dist.init_process_group("gloo")

class Shards(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        if number == 5:
            time.sleep(600)
        return number

def sleeps():
    time.sleep(600)

def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

def loads():  # lists: for tensors a killed process would leave a folder behind
    for batch in DataLoader(Shards(), num_workers=2, collate_fn=list, multiprocessing_context="fork"):
        pass

def fails():
    raise ValueError("no access with " + os.environ["HF_TOKEN"])

def next_batch():
    if RANK == 1 and step == 5 + CYCLE and CYCLE < 4:
        (sleeps, is_stopped, loads, fails)[CYCLE]()

for step in range(10):
    client.heartbeat(step)
    with client.section("data_loading"):
        next_batch()
    with client.section("step"):
        dist.all_reduce(torch.ones(8))
client.shutdown_workload_monitoring()
dist.barrier()
dist.destroy_process_group()
"""
"""Rank 1 has another fault in each cycle but the last."""
SECRET = "hunter2-is-my-password"


def _kept(record: dict[str, Any]) -> tuple[str, dict[int, dict[str, Any]]]:
    """The text of the report, and the evidence of each rank."""
    folder = Path(record["report"])
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    nodes = json.loads((folder / "incident.json").read_text())["nodes"]
    ranks = {rank["rank"]: rank for node in nodes for rank in node["ranks"]}
    return (folder / "report.txt").read_text(), ranks


@pytest.mark.slow
def test_each_fault_of_a_rank_is_explained_before_any_signal(jobs: Jobs) -> None:
    limits = ("--ft-rank-heartbeat-timeout", "10", "--max-restarts", "4")
    job = jobs(FOUR_FAULTS, *limits, nproc=3, env={"HF_TOKEN": SECRET})
    err = job.end(0)
    records = job.journal("incident")
    assert [(each["rank"], each["cause"]) for each in records] == [
        (1, "user_code"),  # its section has a name of the program's own, which decides nothing
        (1, "stopped"),
        (1, "data_loading"),
        (1, "exception"),
    ]
    by_monitor = [each for each in job.journal("signal_sent") if each["by"] == "monitor"]
    assert [each["rank"] for each in by_monitor] == [1, 1, 1], "not the rank that was late first"
    for record, sent, verdict in zip(records, by_monitor, job.journal("verdict"), strict=False):
        assert record["evidence_mono"] < sent["mono"] and verdict["rank"] == 1
        assert record["evidence_mono"] - verdict["at"] < 30.0

    sleeps, stopped, loads, fails = records
    assert "in section 'data_loading'" in sleeps["sentence"]
    assert "sleeps()" in sleeps["sentence"], "the innermost call of its own code"
    report, ranks = _kept(sleeps)
    assert report.startswith("HANG: rank 1 (node ") and len(report.splitlines()) <= 40
    assert sleeps["sentence"] in " ".join(report.split()).replace("( ", "(")
    assert f"verdict: {sleeps['sentence']}" in err and re.search(
        rf"report on cycle 0 \(next: .+\): {re.escape(sleeps['report'])}/report.txt\n", err
    )
    assert {rank: facts["board"]["step"] for rank, facts in ranks.items()} == {0: 5, 1: 5, 2: 5}
    assert [ranks[rank]["collectives"][-1]["operation"] for rank in (0, 2)] == ["all_reduce"] * 2
    assert all(facts["exit"]["asked"] for facts in ranks.values() if not facts["raised"])

    assert stopped["confidence"] == fails["confidence"] == "high"
    step = " ".join(_kept(loads)[0].split()).partition("Next step: ")[2].partition(" Verdict ")[0]
    its_worker = r"the data loader at .+ \(its worker \d+ is in \S+script1\.py:\d+ __getitem__\(\)\)\.$"
    assert re.search(its_worker, step), step

    assert fails["sentence"].count("no access with ***") == 1
    assert _kept(fails)[1][0]["board"]["step"] == 8, "what the others did is known"
    texts = [path.read_text() for path in job.run_dir.rglob("*") if path.is_file()]
    assert texts and not [text for text in texts if SECRET in text]
    assert not [line for line in job.said() if SECRET in line]


UNTOLD = """
class Untold(Exception):
    asked = 0
    def __str__(self):
        Untold.asked += 1
        if CYCLE == 1 or Untold.asked <= 2:
            raise RuntimeError("a handler of a signal, or a defect")
        return "a text"

meet()
if CYCLE < 2 and RANK == 1:
    raise Untold
if CYCLE < 2:
    wait()
"""


def test_an_exception_without_a_text_is_an_exception_nevertheless(jobs: Jobs) -> None:
    """It is asked twice for the record; again if that fails, as when a signal's handler raises meanwhile."""
    job = jobs(UNTOLD, "--max-restarts", "2")
    job.end(0)
    told, never_told = job.journal("incident")
    assert {(each["rank"], each["cause"]) for each in (told, never_told)} == {(1, "exception")}
    assert "Untold: a text" in told["sentence"]
    assert "an uncaught exception: its text is not known" in never_told["sentence"]


def test_a_job_without_trouble_tells_of_no_incident(jobs: Jobs) -> None:
    job = jobs("meet()\n")
    job.end(0)
    assert job.journal("incident") == [] and not (job.run_dir / "incidents").exists()


def test_a_run_directory_that_takes_nothing_costs_the_report_only(jobs: Jobs) -> None:
    job = jobs("if CYCLE == 0:\n    meet()\n    os._exit(3 if RANK else 0)\n", "--max-restarts", "1")
    (job.run_dir / "incidents").parent.mkdir(mode=0o700, exist_ok=True)
    (job.run_dir / "incidents").write_text("in the way")
    err = job.end(0)
    assert "no report of this incident" in err and "incidents" in err
    assert job.journal("incident") == []


def test_the_report_at_the_end_of_the_job_is_waited_for(jobs: Jobs) -> None:
    job = jobs("meet(); os._exit(4)\n", "--max-restarts", "0")
    err = job.end(4)
    (record,) = wait_until(lambda: job.journal("incident"), what="the record of the incident")
    assert record["cause"] == "exit" and "exit code 4" in record["sentence"] and record["report"] in err


# -- one report names one culprit of a job of several nodes, whichever node's limit passed first


TWO_NODES = """
import torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
if CYCLE == 0:  # the launcher waits for what ranks that ended well have left behind
    os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
dist.init_process_group("gloo")
for step in range(8):
    client.heartbeat(step)
    if CYCLE == 0 and RANK == 2 and step == 5:
        client.heartbeat(step)
        time.sleep(1.0)
        client.heartbeat(step)
        deep_sleep = time.sleep(600)
    with client.section("step"):
        dist.all_reduce(torch.ones(8))
client.shutdown_workload_monitoring()
dist.barrier()
dist.destroy_process_group()
"""
"""Rank 2, on the second node, hangs; the others' limits pass a second before its own."""


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["one run directory", "a run directory each"])
def test_the_culprit_of_another_node_is_named(cluster: Cluster, shared: bool, tmp_path: Path) -> None:
    flags = ["--ft-rank-heartbeat-timeout", "6"]
    flags += ["--ft-run-dir", str(tmp_path / "shared")] if shared else []
    # Two launchers of one machine have one name; reports tell nodes apart by it.
    nodes = cluster.pair(TWO_NODES, *flags)
    for node in nodes:
        node.end(0)
    folders = [tmp_path / "shared"] if shared else [node.run_dir for node in nodes]
    found = [path for folder in folders for path in folder.glob("incidents/*/incident.json")]
    assert len(found) == 1, "one node makes the report"
    record = json.loads(found[0].read_text())
    verdict = record["verdict"]
    assert len(record["nodes"]) == 2
    assert verdict["rank"] == 2, verdict
    assert verdict["kind"] == "user_code", verdict
    (culprit,) = [rank for node in record["nodes"] for rank in node["ranks"] if rank["rank"] == 2]
    assert culprit["stacks"], "its stack was asked for before it was stopped"
    # In full where the run directory is shared, else what fits into the store.
    of_node_1 = [rank for node in record["nodes"] for rank in node["ranks"] if node["node_rank"] == 1]
    for rank in of_node_1 if shared else ():
        assert (
            rank["board"]["events"]
            and len(rank["process"]["threads"]) > 1
            and len(rank["process"]["children"]) == 1
        )
    assert culprit["board"]["rhythm"] >= 1.0
    starts = [node["cycle_start"] for node in record["nodes"]]
    assert all(0 < node["at"] - node["cycle_start"] < 120 for node in record["nodes"])
    assert abs(starts[0] - starts[1]) < 30.0, "the launchers begin a cycle together"
    report = (found[0].parent / "report.txt").read_text()
    assert "rank 2" in report.splitlines()[0]
    fragments = sorted(path.name for path in found[0].parent.glob("fragment-*.json"))
    assert len(fragments) == (2 if shared else 1)


# -- a fixed sample of the corpus of faults: one that hangs, and a slow one that is not to be stopped


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lock/step", "slow_once/step"])
def test_fault_of_the_corpus_is_judged_right(tmp_path: Path, name: str) -> None:
    campaign = Campaign(tmp_path, 1, threading.Event())  # limits are 2 s: other tests run beside it as well
    ((scenario, facts),) = campaign.run(HOLDFAST, choose([name]))
    assert facts is not None
    score = scored(scenario, facts)
    assert score.right, f"{score}\n{facts.log[-3000:]}"
