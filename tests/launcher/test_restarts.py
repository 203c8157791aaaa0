"""A rank that fails in whatever way: all ranks start again together; without progress the job ends with a code."""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import signal
from pathlib import Path

import psutil
import pytest

from holdfast.cli.main import main
from holdfast.fault_tolerance.launcher.control.messages import IterationRead
from holdfast.fault_tolerance.launcher.driver import IterationFile
from tests.jobs import Job, Jobs, patient

FAILS_THREE_WAYS = """
say("pid", os.getpid(), "of", os.environ["TORCHELASTIC_MAX_RESTARTS"])
meet()
if CYCLE == 3:
    sys.exit(0)
if RANK == 1:
    if CYCLE == 0:
        kill_me(signal.SIGKILL)
    if CYCLE == 1:
        raise ValueError("bad batch")
    sys.exit(7)
wait()
"""


def test_every_way_to_fail_restarts_all_ranks(jobs: Jobs) -> None:
    job = jobs(FAILS_THREE_WAYS, "--max-restarts", "3")
    job.end(0)
    pids = [job.hear(r"pid (\d+) of 3", ranks=[0, 1], cycle=cycle) for cycle in range(4)]
    assert len({pid for of_cycle in pids for pid in of_cycle.values()}) == 8, "every rank is a new process"
    exits = [(each["exitcode"], each["signal"]) for each in job.journal("rank_exit") if each["rank"] == 1]
    assert exits == [(None, "SIGKILL"), (1, None), (7, None), (0, None)]
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 2, 3]
    # Before a restart one line is enough.
    shown = [line for line in job.said() if "FAILED" in line or "Traceback" in line]
    assert len(shown) == 3 and all("FAILED: rank 1" in line for line in shown)


PROGRESS = """
client = connect()
reached = min(10 * (CYCLE + 1), 30)
client.heartbeat(step=reached)
say("at step", reached)
if CYCLE == 3:
    with client.section("checkpointing"):
        pass
sys.exit(5)
"""


def test_restarts_in_a_row_count_anew_after_progress(jobs: Jobs) -> None:
    """Two restarts are allowed; steps 10, 20, 30 are progress, a checkpoint at 30 too, staying at 30 is none."""
    job = jobs(PROGRESS, "--max-restarts", "2", "--ft-restarts-reset-on-progress", nproc=1)
    job.end(5)
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 1, 1, 1, 2]
    assert len(job.lines("at step")) == 6


# -- stopping ranks for a restart ----------------------------------------------------------------------------

IGNORES = """
if RANK == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if RANK == 2:
    with open(os.environ["NOTES"] + "/stops", "w") as file:
        file.write(str(os.getpid()))
meet()
if CYCLE == 0:
    if RANK == 1:
        while open(f"/proc/{open(os.environ['NOTES'] + '/stops').read()}/stat").read().split(") ")[1][0] != "T":
            time.sleep(0.002)
        sys.exit(3)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    wait()
"""


def stopping_time(job: Job) -> float:
    """Seconds from the failure of cycle 0 to the first rank of cycle 1."""
    began = next(each["mono"] for each in job.journal("stop") if each["cycle"] == 0)
    return next(each["mono"] for each in job.journal("rank_start") if each["cycle"] == 1) - began


def test_peers_that_ignore_sigterm_or_are_stopped_do_not_delay_the_restart(jobs: Jobs) -> None:
    """A rank under SIGSTOP (a debugger, a hang drill) would sit on the SIGTERM."""
    job = jobs(IGNORES, "--max-restarts", "1", "--workers-stop-timeout", "5", nproc=3)
    job.end(0)
    assert 5.0 <= stopping_time(job) < 25
    ends = {each["rank"]: each["signal"] for each in job.journal("rank_exit") if each["cycle"] == 0}
    assert ends == {0: "SIGKILL", 1: None, 2: "SIGTERM"}


SAVES = """
client = connect()
def save(*_):
    with client.section("checkpointing"):
        if RANK == 0:
            meet("saves")
        time.sleep(4)
    say("saved")
    if RANK == 2:
        sys.exit(0)
signal.signal(signal.SIGTERM, save if RANK == 2 else signal.SIG_IGN)
if CYCLE == 0:
    meet()
    if RANK == 0:
        save()
    else:
        meet("saves")
    if RANK == 1:
        sys.exit(3)
    wait()
"""


def test_rank_that_saves_a_checkpoint_gets_the_time_for_it(jobs: Jobs) -> None:
    """Rank 0 has its section open when the stop begins, rank 2 opens it in its SIGTERM handler."""
    job = jobs(SAVES, "--max-restarts", "1", "--workers-stop-timeout", "2", nproc=3)
    job.end(0)
    assert len(job.lines("^rank [02] cycle 0 saved$")) == 2
    assert stopping_time(job) < 25


# -- A job that makes no progress is ended with a code of its own


WRITES = """
saved = {saved}[CYCLE] if RANK == 0 else None
if saved is not None:
    with open("latest", "w") as file:
        file.write(str(saved) + "\\n")
meet()
sys.exit(5)
"""
"""`saved` has what rank 0 writes in each cycle; then all ranks end."""
ITERATIONS = ("--ft-checkpoint-iteration-file", "latest", "--max-restarts")


def restarts(job: Job) -> int:
    return len(job.journal("restart"))


def test_job_that_saves_nothing_new_ends_with_93(jobs: Jobs) -> None:
    (jobs.folder / "latest").write_text("500")
    job = jobs(WRITES.format(saved=[500, 600, None, None, None]), *ITERATIONS, "10")
    said = job.end(93)
    assert restarts(job) == 3, "cycle 1 made progress, 2 and 3 made none"
    (end,) = job.journal("run_end")
    assert end["exit_code"] == 93
    assert "FAILED: rank" in said and "no restart left" not in said
    assert main(["replay", str(job.run_dir)]) == 0
    read = [each for each in job.journal("decision") if "IterationRead" in json.dumps(each["event"])]
    assert len(read) == 5, "at the start, and at each failure"


def test_number_from_before_the_job_is_no_progress(jobs: Jobs) -> None:
    """The scheduler has started the job again: it resumes from iteration 500."""
    (jobs.folder / "latest").write_text("500")
    job = jobs(WRITES.format(saved=[500, 500, 500]), *ITERATIONS, "10")
    job.end(93)
    assert restarts(job) == 1


def test_file_that_hangs_ends_no_job(jobs: Jobs) -> None:
    os.mkfifo(jobs.folder / "latest")  # without a writer: opening it waits forever
    job = jobs("meet()\nsys.exit(5)", *ITERATIONS, "2")
    job.end(5)
    assert restarts(job) == 2
    assert len(job.journal("iteration_unread")) == 1 and not job.journal("launcher_error")


@pytest.mark.check
@pytest.mark.parametrize(
    ("content", "number"), [("500\n", 500), (None, 0), ("release\n", -1), ("", -1), ("9" * 19, -1)]
)
def test_number_of_the_file(tmp_path: Path, content: str | None, number: int) -> None:
    """`release` is what Megatron-LM writes for a release checkpoint; -1: the cycle changes nothing."""
    path, answers = tmp_path / "latest", queue.SimpleQueue[object]()
    if content is not None:
        path.write_text(content)
    IterationFile(str(path), answers.put, lambda *_, **__: None).read(3)
    assert answers.get(timeout=30) == IterationRead(3, number)


HANGS = """
client = connect()
client.send_heartbeat()
wait()
"""


def test_hung_ranks_that_saved_nothing_end_with_93(jobs: Jobs) -> None:
    """The code is the agreed one, not the 137 of the ranks; the incident is reported."""
    job = jobs(HANGS, *ITERATIONS, "10", "--ft-rank-heartbeat-timeout", "0.5", nproc=1, under=patient())
    job.end(93)
    assert restarts(job) == 1 and len(job.journal("verdict")) == len(job.journal("incident")) == 2
    assert [each["reason"] for each in job.journal("iteration_unread")] == ["No such file or directory"]


# -- the same failure ---------------------------------------------------------------------------------------------

RAISES = """
client = connect()
for step in range(24):
    client.heartbeat(step)
meet()
if RANK == CYCLE % 2:
    raise IndexError(f"index {1000 + CYCLE} is out of range")
wait()
"""


def test_one_exception_at_one_step_ends_the_job_after_three_cycles(jobs: Jobs) -> None:
    """On whichever rank; its numbers do not count. The evidence is kept, and the decision can be replayed."""
    job = jobs(RAISES, "--max-restarts", "8")
    said = job.end(93)
    assert restarts(job) == 2
    assert "IndexError: index # is out of range after step 23" in job.journal("incident")[-1]["failure"]
    assert "no restart left" not in said
    assert [each["exit_code"] for each in job.journal("run_end")] == [93]
    assert main(["replay", str(job.run_dir)]) == 0


# -- A restart that really restarts: ranks killed in the middle of collectives come back and meet again


ALL_REDUCE = """
import torch, torch.distributed as dist
say("pid", os.getpid())
dist.init_process_group("gloo")
total = torch.ones(1024)
dist.all_reduce(total)
assert total[0] == int(os.environ["WORLD_SIZE"])
say("meets the others")
enough = torch.zeros(1024)
while not enough[0]:  # agreed on, so that all leave after the same collective
    enough[0] = os.path.exists(os.environ["NOTES"] + "/enough")
    dist.all_reduce(enough, dist.ReduceOp.MAX)
    time.sleep(0.005)
os._exit(0)
"""
KILLS = 5


@pytest.mark.slow
def test_kill_of_a_random_rank_five_times(jobs: Jobs) -> None:
    """The soak does it a hundred times."""
    chance = random.Random(os.environ.get("HOLDFAST_TEST_SEED", "kill -9"))
    job = jobs(ALL_REDUCE, "--max-restarts", str(KILLS), nproc=4, env={"OMP_NUM_THREADS": "1"})
    held = 0
    for cycle in range(KILLS):
        pids = job.hear(r"pid (\d+)", ranks=range(4), cycle=cycle)
        job.hear("meets the others", ranks=range(4), cycle=cycle)
        if cycle == 1:
            held = psutil.Process(job.pid).num_fds() + 2
        elif cycle:  # the report of the cycle before may be in progress
            job.spawned.wait_for(lambda most=held: psutil.Process(job.pid).num_fds() <= most)
        victim = chance.randrange(4)
        os.kill(int(pids[victim]), signal.SIGKILL)
        # Its peers' exceptions on their lost connections may be older than its death.
        job.wait_for(
            rf"FAILED: rank {victim} \(node \S+, pid {pids[victim]}, cycle {cycle}\): killed by SIGKILL"
        )
    job.hear("meets the others", ranks=range(4), cycle=KILLS)
    job.tell("enough")
    job.end(0)
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 2, 3, 4, 5]


FINDS = """
import torch.distributed as dist
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
say("finds", "something" if store.check(["left by the dead"]) else "nothing", os.environ["MASTER_ADDR"])
meet()
store.set("left by the dead", "an address")
if CYCLE == 0:
    kill_me(signal.SIGKILL) if RANK == 0 else wait()
until("looked")
os._exit(0)
"""


def test_a_restarted_job_does_not_share_a_store_with_the_dead_one(jobs: Jobs) -> None:
    """And its launcher, with warm start, has not imported torch for it."""
    flags = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    job = jobs(FINDS, "--max-restarts", "1", "--ft-warm-start=on", *flags)
    job.hear("finds", ranks=[0, 1], cycle=1)
    mapped = {Path(each.path).name for each in psutil.Process(job.pid).memory_maps()}
    assert any(name.startswith("libc") for name in mapped)
    assert not any("torch" in name for name in mapped)
    job.tell("looked")
    job.end(0)
    for cycle in (0, 1):
        found = job.hear(r"finds (\w+ \S+)", ranks=[0, 1], cycle=cycle)
        assert set(found.values()) == {"nothing 127.0.0.1"}, "fresh, and on loopback only"


# -- A job whose script knows nothing of Holdfast: its optimizer's steps are its progress


TRAINS = """
import torch
assert not [name for name in sys.modules if name.startswith("holdfast")]
assert not [name for name in os.environ if name in ("HOLDFAST_OPTIMIZER_STEPS", "HOLDFAST_MODULES_FILE")]
weight = torch.nn.Parameter(torch.zeros(2))
sgd = torch.optim.SGD([weight], lr=0.1)

def train(steps):
    for _ in range(steps):
        weight.sum().backward()
        sgd.step()
    say("at", float(weight[0]))

"""


@pytest.mark.slow
def test_counted_steps_show_a_hang_between_two_and_progress(jobs: Jobs) -> None:
    """Cycle 0 hangs, cycle 1 crashes: with one restart allowed, two failures in a row would end the job."""
    text = (
        TRAINS
        + "meet('begins')\ntrain(4 + 2 * CYCLE)\nif CYCLE == 0: wait()\nmeet()\nsys.exit(7 * (CYCLE == 1))\n"
    )
    flags = ("--max-restarts", "1", "--ft-restarts-reset-on-progress", "--ft-rank-heartbeat-timeout", "5")
    job = jobs(text, "--ft-warm-start", "on", *flags)
    job.end(0)
    (start,) = job.journal("run_start")
    limits = "for every rank: from one optimizer step to the next 5 s; for ranks that connect"
    assert start["limits"].startswith(limits)
    (verdict,) = job.journal("verdict")
    assert (verdict["reason"], verdict["limit"], verdict["connected"]) == ("heartbeat", 5.0, False)
    firsts = job.journal("first_step")
    assert sorted((each["cycle"], each["rank"]) for each in firsts) == list(
        itertools.product(range(3), range(2))
    )
    assert {(each["step"], each["counted"]) for each in firsts} == {(1, True)}
    (listed,) = (job.run_dir / "preload").glob("*.json")
    names = [name for name, _ in json.loads(listed.read_text())["modules"]]
    assert "torch" in names and not [name for name in names if name.startswith("holdfast")]
    assert [record["steps"] for record in job.journal("counted_steps")] == [4, 6, 8]
    longest = [record["longest"] for record in job.journal("counted_steps")]
    assert longest[0] > 5
    (learned,) = job.run_dir.glob("learned-limits-*.json")  # of the cycle that succeeded
    state = json.loads(learned.read_text())["current_timeouts"]
    assert state["heartbeat"]["initial"] == 300.0
    expected = max(5.0, 5.0 * longest[2])  # the floor is what the user configured, and not 10 s
    assert state["heartbeat"]["subsequent"] == pytest.approx(expected, rel=0.01)
    assert [record["seconds"] > 0 for record in job.journal("resume")] == [True, True]


def test_steps_are_not_counted_where_the_user_does_not_want_it(jobs: Jobs) -> None:
    flags = ("--ft-ignore-optimizer-steps", "--ft-rank-heartbeat-timeout", "600")
    job = jobs(TRAINS + "train(4)", *flags, nproc=1)
    job.end(0)
    assert job.journal("first_step", "first_heartbeat", "verdict") == []
    (start,) = job.journal("run_start")
    assert start["limits"].startswith("for ranks that connect: first heartbeat 3600 s, heartbeat 600 s")
