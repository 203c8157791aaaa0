"""A hundred times kill -9, and hundreds of warm restarts, each under one launcher: every rank trains again.

Of the warm ones each has another reason; now and then the zygote is killed, or a standby, or all standbys are asked to
end. What is held in memory is compared at moments that are alike: all standbys are there.
Does not cover: CUDA, and several nodes.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.jobs import Job, Jobs
from tests.launcher.test_warm_start import named, standbys
from tests.monitor.job import board_directory, monitor, ranks, tree, wait_gone
from tests.processes import wait_until

from .conftest import Held, Row, does_not_grow, grown, held, promised

RANKS = 4
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SETTLED = 5  # cycles after which a launcher has all that it needs
ALLOWED = 6.0  # MB that a launcher may hold more at the end

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.ones(1024)
dist.all_reduce(number)
assert number[0] == int(os.environ["WORLD_SIZE"])
say("trains", time.monotonic())
enough = torch.zeros(1024)
while not enough.any():  # all ranks leave in the same step
    time.sleep(0.005)
    enough += os.path.exists(os.environ["NOTES"] + "/enough")
    dist.all_reduce(enough)
dist.barrier()
os._exit(0)
"""


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kill_of_a_random_rank(jobs: Jobs, row: Row) -> None:
    kills = promised(100)
    chance = random.Random(os.environ.get("HOLDFAST_TEST_SEED", "kill -9"))
    began = time.monotonic()
    options = (f"--max-restarts={kills}", "--ft-warm-start=off")
    job = jobs(ALL_REDUCE, *options, nproc=RANKS, env=ONE_THREAD)
    seconds, launcher, watcher, processes = [], [], [], []
    killed = None
    for cycle in range(kills + 1):
        trains = max(_trains(job, cycle))
        if killed is not None:
            seconds.append(trains - killed)
        launcher.append(held(job.pid))
        watcher.append(held(monitor(job)))
        processes.append(len(tree(job)))
        if cycle < kills:
            killed = time.monotonic()
            os.kill(ranks(job, cycle)[chance.randrange(RANKS)], signal.SIGKILL)
    _ends_and_leaves_nothing(job)
    assert [each["restarts_used"] for each in job.journal("restart")] == list(range(1, kills + 1))
    does_not_grow(launcher, SETTLED, ALLOWED)
    does_not_grow(watcher, SETTLED, 1.0)
    assert set(processes) == {1 + 1 + 1 + RANKS}, "launcher, monitor, store, ranks: in every cycle"
    row(
        f"kill -9 of a random one of {RANKS} gloo ranks, one launcher",
        f"{len(seconds)} of {kills} train again",
        f"kill to first all-reduce on all ranks: median {statistics.median(seconds):.2f} s, "
        f"longest {max(seconds):.2f} s; {time.monotonic() - began:.0f} s in all",
    )
    row("launcher over these restarts", *grown(launcher, SETTLED))
    row("monitor over these restarts", *grown(watcher, SETTLED))
    row("left afterwards", "nothing", "processes, descriptors, /dev/shm, $TMPDIR")


def _trains(job: Job, cycle: int) -> list[float]:
    return [float(when) for when in job.hear(r"trains (\S+)", ranks=range(RANKS), cycle=cycle).values()]


def _ends_and_leaves_nothing(job: Job) -> None:
    everybody, boards = tree(job), board_directory(job)
    last = len(job.journal("cycle_start")) - 1
    assert [entry.name for entry in boards.glob("cycle-*")] == [f"cycle-{last}"]
    (job.notes / "enough").touch()
    job.end(0)
    wait_gone(everybody, 60, "everything of the job ended")
    assert not boards.exists()
    assert os.listdir(tempfile.gettempdir()) == []


# -- warm restarts, each for another reason ------------------------------------------------------------------


LIMIT = 1.0  # seconds without a heartbeat
CAUSES = ("kill -9", "exception", "hang")
SAID = {"kill -9": "killed by SIGKILL", "exception": "ValueError: told to fail", "hang": "hung: "}
EVERY = 10  # cycles, of which one lasts until all standbys are there
WARM_SETTLED = 2  # such cycles after which a launcher has all that it needs
OF_THE_ZYGOTE = 2.0  # MB
NEW_ZYGOTE = 120.0  # seconds: the launcher waits 30 before it tries again, and the new one imports gently

TRAINS = """
import torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient

weight = torch.nn.Parameter(torch.ones(8))
sgd = torch.optim.SGD([weight], lr=0.01)
sgd.step()  # which imports a second of modules: no peer is to wait for that later
client = RankMonitorClient()
client.init_workload_monitoring()
dist.init_process_group("gloo")
number = torch.ones(1024)
dist.all_reduce(number)
assert number[0] == int(os.environ["WORLD_SIZE"])
notes = os.environ["NOTES"]
with open(f"{notes}/trains-{CYCLE}", "a") as file:
    file.write(f"{RANK} {os.getpid()} {time.monotonic()}\\n")
while True:
    client.send_heartbeat()
    if os.path.exists(f"{notes}/exception-{CYCLE}-{RANK}"): raise ValueError("told to fail")
    if os.path.exists(f"{notes}/hang-{CYCLE}-{RANK}"): wait()
    weight.grad = torch.ones(8)
    dist.all_reduce(weight.grad)
    sgd.step()
    enough = torch.tensor(float(os.path.exists(f"{notes}/enough")))
    dist.all_reduce(enough)
    if enough: break
    time.sleep(0.005)
client.shutdown_workload_monitoring()
dist.barrier()
os._exit(0)
"""


@dataclass
class Seen:
    """What the test has seen; `cold` are the cycles that begin without a zygote, `zygotes` is by pid."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {cause: [] for cause in CAUSES})
    cold: set[int] = field(default_factory=set)
    launcher: list[Held] = field(default_factory=list)
    zygotes: dict[int, list[Held]] = field(default_factory=dict)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("count", "restarts", "zygotes"), [(4, 500, 2), (8, 200, 1)])
def test_warm_restarts(jobs: Jobs, row: Row, count: int, restarts: int, zygotes: int) -> None:
    restarts = promised(restarts)
    lost = {restarts * (each + 1) // (zygotes + 1) for each in range(zygotes)}
    began = time.monotonic()
    options = (
        *("--max-restarts", str(restarts), "--ft-warm-start", "on"),
        *("--ft-param-initial_rank_heartbeat_timeout", "60", "--ft-param-rank_heartbeat_timeout", str(LIMIT)),
    )
    job = jobs(TRAINS, *options, nproc=count, env=ONE_THREAD)
    seen = _restart_again_and_again(job, count, restarts, lost)
    _ends_and_leaves_nothing(job)
    _keeps_its_reports(job.run_dir)
    _all_were_warm(job, count, seen.cold)
    assert len(list((job.run_dir / "incidents").iterdir())) == restarts
    restarted = job.journal("restart")
    assert [each["restarts_used"] for each in restarted] == list(range(1, restarts + 1))
    for cycle, each in enumerate(restarted):
        assert SAID[CAUSES[cycle % len(CAUSES)]] in each["reason"], f"cycle {cycle}"
    does_not_grow(seen.launcher, WARM_SETTLED, ALLOWED)
    for samples in seen.zygotes.values():
        does_not_grow(samples, WARM_SETTLED, OF_THE_ZYGOTE)
    took = ", ".join(f"{cause} {_spread(times)}" for cause, times in seen.seconds.items())
    row(
        f"{count} gloo ranks, one launcher: kill -9, exception, hang alternately; {len(lost)} times the zygote killed",
        f"{restarts} of {restarts} train again, all warm but {len(seen.cold)}",
        f"to the first all-reduce on all ranks, median and longest: {took} (its limit of {LIMIT:g} s included); "
        f"{time.monotonic() - began:.0f} s in all",
    )
    row("the launcher over these restarts", *grown(seen.launcher, WARM_SETTLED))
    row("the zygote with most of them", *grown(max(seen.zygotes.values(), key=len), WARM_SETTLED))


def _restart_again_and_again(job: Job, count: int, restarts: int, lost: set[int]) -> Seen:
    """`lost` are the cycles in which the zygote is killed; after the standbys that it leaves one cycle starts cold."""
    seen = Seen()
    chance = random.Random(os.environ.get("HOLDFAST_TEST_SEED", "warm"))
    caused, cause = 0.0, ""
    for cycle in range(restarts + 1):
        pids, trains = _train(job, cycle, count)
        if cycle and cycle not in seen.cold:
            seen.seconds[cause].append(trains - caused)
        if cycle in lost:
            standbys(job, count)
            _zygote_is_killed(job)
            seen.cold.add(cycle + 2)
        elif cycle % EVERY == 0 or cycle in seen.cold:
            _all_is_ready(job, count, cycle)
            _look(job, seen)
            _at_the_standbys(job, count, cycle)
        if cycle < restarts:
            cause = CAUSES[cycle % len(CAUSES)]
            caused = _fail(job, cycle, cause, chance.randrange(count), pids)
    seen.cold = {cycle for cycle in seen.cold if cycle <= restarts}
    return seen


def _train(job: Job, cycle: int, count: int) -> tuple[dict[int, int], float]:
    """Wait until all ranks of the cycle train: their pids, and when the last began."""
    file = job.notes / f"trains-{cycle}"

    def told() -> list[list[str]]:
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return whole if len(whole) == count else []

    found = job.spawned.wait_for(told)
    assert isinstance(found, list)
    return {int(rank): int(pid) for rank, pid, _ in found}, max(float(at) for _, _, at in found)


def _fail(job: Job, cycle: int, cause: str, rank: int, pids: dict[int, int]) -> float:
    at = time.monotonic()
    if cause == "kill -9":
        os.kill(pids[rank], signal.SIGKILL)
    else:
        (job.notes / f"{cause}-{cycle}-{rank}").touch()
    return at


def _zygote_is_killed(job: Job) -> None:
    """The ranks continue, and the launcher notices it."""
    before = len(_states(job, "ended"))
    (zygote,) = named(job, "zygote")
    zygote.kill()
    wait_until(lambda: len(_states(job, "ended")) > before, what="the launcher misses its zygote")


def _all_is_ready(job: Job, count: int, cycle: int) -> None:
    """All standbys are there; in the first cycle those of the zygote that has learned what the ranks import."""
    if cycle == 0:
        wait_until(lambda: len(_states(job, "ready")) == 2, NEW_ZYGOTE, "what was learned is imported")
    wait_until(lambda: len(named(job, "standby")) == count, NEW_ZYGOTE, f"{count} standbys")


def _states(job: Job, state: str) -> list[dict[str, object]]:
    return [record for record in job.journal("warm_start") if record["state"] == state]


def _look(job: Job, seen: Seen) -> None:
    (zygote,) = named(job, "zygote")
    seen.launcher.append(held(job.pid))
    seen.zygotes.setdefault(zygote.pid, []).append(held(zygote.pid, shared=True))


def _at_the_standbys(job: Job, count: int, cycle: int) -> None:
    """Alternately one is killed (another comes in its place, or the rank is forked when it is needed), and all are
    asked to end, which they ignore."""
    waiting = standbys(job, count)
    if cycle % (2 * EVERY):
        waiting[0].kill()
        return
    for standby in waiting:
        standby.terminate()
    assert {each.pid for each in standbys(job, count)} == {each.pid for each in waiting}


def _keeps_its_reports(run_dir: Path) -> None:
    """One of each restart, whole; and beside these the list of modules, the journal and its lock: no file aside."""
    incidents = run_dir / "incidents"
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert {path.suffix for path in files if incidents not in path.parents} == {".json", ".jsonl", ".lock"}
    folders = [{path.name for path in folder.iterdir()} for folder in incidents.iterdir()]
    assert folders == [{"incident", "incident.json", "report.txt"}] * len(folders)


def _all_were_warm(job: Job, count: int, cold: set[int]) -> None:
    """But for the cycles without a zygote; and a standby that it was just forking when it was killed may be lost."""
    starts = [(each["cycle"], each["start"]) for each in job.journal("rank_start")]
    found = [cycle for cycle, start in starts if start == "cold"]
    assert [cycle for cycle in found if cycle in cold] == sorted([*cold] * count)
    assert all(found.count(cycle) <= 1 and cycle + 1 in cold for cycle in found if cycle not in cold)


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "–"
    return f"{statistics.median(seconds):.2f} and {max(seconds):.2f} s"
