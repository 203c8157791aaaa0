"""Incidents of real jobs, of one node and of two, and a sample of the corpus of faults: what is reported of them."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.corpus import choose
from benchmarks.faults.run import HOLDFAST, ROOT, Campaign
from benchmarks.faults.score import scored
from tests.launcher.conftest import Job, Jobs
from tests.launcher.conftest import jobs as jobs
from tests.nodes.conftest import Cluster
from tests.nodes.conftest import cluster as cluster
from tests.processes import Spawner, wait_until

TRAINING = """
import torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
dist.init_process_group("gloo")

def next_batch():
    if CYCLE == 0 and RANK == 1 and step == 5:
        happens()

for step in range(8):
    client.heartbeat(step)
    with client.section("data_loading"):
        next_batch()
    with client.section("step"):
        dist.all_reduce(torch.ones(8))
client.shutdown_workload_monitoring()
dist.barrier()
dist.destroy_process_group()
"""

LIMIT = ("--ft-rank-heartbeat-timeout", "6", "--max-restarts", "1")


def _program(happens: str) -> str:
    return f"def happens():\n    {happens}\n" + TRAINING


def _incident(job: Job) -> dict[str, Any]:
    """The journal's record of the one incident."""
    (record,) = job.journal("incident")
    return record


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(record["report"], "incident.json").read_text())
    return found


@pytest.mark.slow
def test_a_hang_is_explained_before_anybody_is_signalled(jobs: Jobs) -> None:
    job = jobs(_program("time.sleep(600)"), *LIMIT, nproc=3)
    err = job.end(0)
    record = _incident(job)
    # It sleeps in its own code; its section has a name of the program's own, which decides nothing.
    assert (record["rank"], record["cause"]) == (1, "user_code")
    assert "in section 'data_loading'" in record["sentence"]
    assert "happens()" in record["sentence"], "the innermost call of its own code"
    (sent,) = [each for each in job.journal("signal_sent") if each["by"] == "monitor"]
    (verdict,) = job.journal("verdict")
    assert record["evidence_mono"] < sent["mono"] and verdict["rank"] == sent["rank"] == 1
    assert record["evidence_mono"] - verdict["at"] < 30.0
    report = Path(record["report"], "report.txt").read_text()
    assert report.startswith("HANG: rank 1 (node ") and len(report.splitlines()) <= 40
    assert record["sentence"] in " ".join(report.split()).replace("( ", "(")
    assert f"verdict: {record['sentence']}" in err and re.search(
        rf"report on cycle 0 \(next: .+\): {re.escape(record['report'])}/report.txt\n", err
    )
    for path in Path(record["report"]).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    ranks = {rank["rank"]: rank for node in _kept(record)["nodes"] for rank in node["ranks"]}
    assert {rank: facts["board"]["step"] for rank, facts in ranks.items()} == {0: 5, 1: 5, 2: 5}
    assert [ranks[rank]["collectives"][-1]["operation"] for rank in (0, 2)] == ["all_reduce"] * 2
    assert all(facts["exit"]["asked"] for facts in ranks.values() if not facts["raised"])


@pytest.mark.slow
def test_the_stopped_rank_is_accused_whoever_is_late_first(jobs: Jobs) -> None:
    job = jobs(_program("os.kill(os.getpid(), signal.SIGSTOP)"), *LIMIT)
    job.end(0)
    record = _incident(job)
    assert (record["rank"], record["cause"], record["confidence"]) == (1, "stopped", "high")
    (sent,) = [each for each in job.journal("signal_sent") if each["by"] == "monitor"]
    assert sent["rank"] == 1


UNTOLD = """
class Untold(Exception):
    asked = 0
    def __str__(self):
        Untold.asked += 1
        if Untold.asked <= {times}:
            raise RuntimeError("a handler of a signal, or a defect")
        return "a text"

def happens():
    raise Untold
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "text"),
    [
        pytest.param(2, "Untold: a text", id="told in the end"),
        pytest.param(1000, "an uncaught exception: its text is not known", id="never told"),
    ],
)
def test_an_exception_without_a_text_is_an_exception_nevertheless(jobs: Jobs, times: int, text: str) -> None:
    """It is asked twice for the record; again if that fails, as when a signal's handler raises meanwhile."""
    job = jobs(UNTOLD.format(times=times) + TRAINING, *LIMIT)
    job.end(0)
    record = _incident(job)
    assert (record["rank"], record["cause"]) == (1, "exception")
    assert text in record["sentence"]


@pytest.mark.slow
def test_an_exception_comes_first_and_secrets_stay_out(jobs: Jobs) -> None:
    secret = "hunter2-is-my-password"
    variables = {"HF_TOKEN": secret}
    job = jobs(
        _program("raise ValueError('no access with ' + os.environ['HF_TOKEN'])"), *LIMIT, env=variables
    )
    job.end(0)
    record = _incident(job)
    assert (record["rank"], record["cause"], record["confidence"]) == (1, "exception", "high")
    assert record["sentence"].count("no access with ***") == 1
    ranks = {rank["rank"]: rank for node in _kept(record)["nodes"] for rank in node["ranks"]}
    assert ranks[0]["board"]["step"] == 5, "what the others did is known"
    texts = [path.read_text() for path in job.run_dir.rglob("*") if path.is_file()]
    assert texts and not [text for text in texts if secret in text]
    assert not [line for line in job.said() if secret in line]


def test_a_rank_that_ended_is_explained_without_torch(jobs: Jobs) -> None:
    job = jobs("if CYCLE == 0 and RANK == 1: meet(); os._exit(3)\nif CYCLE == 0: meet(); wait()\n", *LIMIT)
    err = job.end(0)
    record = _incident(job)
    assert (record["rank"], record["cause"]) == (1, "exit")
    assert "exit code 3" in record["sentence"] and record["report"] in err


def test_a_job_without_trouble_tells_of_no_incident(jobs: Jobs) -> None:
    job = jobs("meet()\n", *LIMIT)
    job.end(0)
    assert job.journal("incident") == [] and not (job.run_dir / "incidents").exists()


def test_a_run_directory_that_takes_nothing_costs_the_report_only(jobs: Jobs) -> None:
    job = jobs("if CYCLE == 0:\n    meet()\n    os._exit(3 if RANK else 0)\n", *LIMIT)
    (job.run_dir / "incidents").parent.mkdir(mode=0o700, exist_ok=True)
    (job.run_dir / "incidents").write_text("in the way")
    err = job.end(0)
    assert "no report of this incident" in err and "incidents" in err
    assert job.journal("incident") == []


def test_the_report_at_the_end_of_the_job_is_waited_for(jobs: Jobs) -> None:
    job = jobs("meet(); os._exit(4)\n", "--max-restarts", "0")
    job.end(4)
    wait_until(lambda: job.journal("incident"), what="the record of the incident")
    assert _incident(job)["cause"] == "exit"


LOADS = """
from torch.utils.data import DataLoader, Dataset

class Shards(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        if number == 5 and RANK == 1:
            time.sleep(600)
        return number

# A list: for tensors a killed process would leave a folder behind.
batches = iter(DataLoader(Shards(), num_workers=2, collate_fn=list, multiprocessing_context="fork"))

def happens():
    for batch in batches:
        pass
"""


@pytest.mark.slow
def test_a_stuck_data_loader_has_the_place_of_its_worker(jobs: Jobs) -> None:
    job = jobs("import torch\n" + LOADS + TRAINING, *LIMIT)
    job.end(0)
    record = _incident(job)
    assert (record["rank"], record["cause"]) == (1, "data_loading")
    report = " ".join(Path(record["report"], "report.txt").read_text().split())
    step = report.partition("Next step: ")[2].partition(" Verdict ")[0]
    assert re.search(
        r"the data loader at .+ \(its worker \d+ is in \S+script1\.py:\d+ __getitem__\(\)\)\.$", step
    ), step


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


# -- A fixed sample of the corpus of faults


SAMPLE = (
    "kill_9/collective",
    "lock/step",
    "stop/collective",
    "storage/checkpoint",
    "worker_sleeps/step",
    "slow_once/step",
)


@pytest.mark.slow
def test_the_sample(tmp_path: Path) -> None:
    sample = choose(SAMPLE)
    assert len(sample) == len(SAMPLE)
    campaign = Campaign(tmp_path, 1, threading.Event())  # limits are 2 s: other tests run beside it as well
    wrong = []
    for scenario, facts in campaign.run(HOLDFAST, sample):
        assert facts is not None
        score = scored(scenario, facts)
        if not score.right:
            wrong.append(f"{score}\n{facts.log[-3000:]}")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
def test_an_interrupt_ends_everything_and_says_so(spawn: Spawner, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--only", "sleep/step", "--keep", tmp_path]
    paths = f"{ROOT}:{ROOT / 'src'}"
    process = spawn(command, env={"PYTHONPATH": paths}, cwd=tmp_path)
    note = tmp_path / "holdfast" / "sleep-step"
    wait_until(lambda: list(note.glob("happens-*")), what="the fault")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert "interrupted; the page is as it was" in process.err()


def test_a_name_that_does_not_exist_is_one_line(spawn: Spawner, tmp_path: Path) -> None:
    paths = f"{ROOT}:{ROOT / 'src'}"
    command = [sys.executable, "-m", "benchmarks.faults", "--only", "slep"]
    process = spawn(command, env={"PYTHONPATH": paths}, cwd=tmp_path)
    assert process.wait() == 1
    assert process.err() == "faults: there is no fault named slep; --list shows all\n"
