"""Early detection: what is a sign, what never is, and samples of real processes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import Board, BoardReader, Limits
from holdfast.incidents.early import (
    CONFIRM,
    PERIOD,
    EarlyDetection,
    Sample,
    Sign,
    ThreadCount,
    sample,
    thread_counts,
)
from tests.monitor import node as monitored
from tests.monitor.node import identity, state
from tests.processes import Spawner, wait_until

# What one rank does for a while: its main thread's state, whether its threads run, whether a debugger holds it.
COMPUTES, WAITS, WAITS_QUIETLY = ("R", True), ("S", True), ("S", False)
READS_A_DISK, ASLEEP, IS_STOPPED, IS_TRACED = ("D", False), ("S", False), ("T", False), ("t", False)
HAS_NO_MAIN_THREAD = ("Z", True)
IS_DYING, IS_A_ZOMBIE, IS_GONE = ("dying", False), ("zombie", False), ("gone", False)


@dataclass
class Rank:
    """One simulated rank."""

    number: int
    does: tuple[str, bool] = COMPUTES
    activity: float = 0.0
    ran: int = 0
    reports: bool = True
    finished: bool = False
    start_time: int = 77

    def sample(self, now: float, threads: bool) -> Sample:
        letter, runs = self.does
        self.ran += runs
        pid = 1000 + self.number
        state = {"dying": "Z", "zombie": "Z"}.get(letter, letter)
        other = {"Z": "S", "gone": "Z"}.get(state, state)
        counts = {pid: ThreadCount(state, self.ran, self.ran), pid + 500: ThreadCount(other, 0, self.ran)}
        if letter == "dying":  # the last thread closes files on a slow disk
            counts[pid + 500] = ThreadCount("D", 0, self.ran, exiting=True)
        if letter == "zombie":
            del counts[pid + 500]
        return Sample(
            rank=self.number,
            who=(pid, self.start_time),
            state=state,
            activity=int(self.activity * 1e9),
            silent=now - self.activity,
            reports=self.reports,
            finished=self.finished,
            traced=letter == "t" and threads,
            threads=counts if threads else None,
        )


@dataclass
class Simulation:
    """Ranks of one node, a clock, and early detection, which samples when it has said that it will."""

    count: int = 4
    now: float = 100.0
    launcher_stopped: bool = False
    watched: bool = True
    signs: list[tuple[float, Sign]] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        self.ranks = [Rank(number, activity=self.now) for number in range(self.count)]
        self.detection = EarlyDetection()

    def lasts(self, seconds: float, late: float = 0.0) -> None:
        """Every rank continues what it does for so long."""
        end = self.now + seconds
        for rank in self.ranks:
            rank.ran += rank.does[1]
        while self.watched and (at := max(self.now, self.detection.next_sample) + late) <= end:
            self.now = at
            self.looks += 1
            wanted = self.detection.wants_threads
            ranks = {rank.number: rank.sample(at, rank.number in wanted) for rank in self.ranks}
            sign = self.detection.observe(at, ranks, launcher_stopped=self.launcher_stopped)
            if sign:
                self.signs.append((at, sign))
        self.now = end

    def do(self, *what: tuple[str, bool]) -> None:
        """Each rank its own; the last is for all that follow."""
        for rank in self.ranks:
            rank.ran += rank.does == IS_STOPPED  # it is continued, and so runs before it is stopped again
            rank.does = what[min(rank.number, len(what) - 1)]

    def step(self, seconds: float = 0.2) -> None:
        self.do(COMPUTES)
        self.lasts(seconds)
        for rank in self.ranks:
            rank.activity = self.now


def trained(count: int = 4) -> Simulation:
    job = Simulation(count)
    for _ in range(80):
        job.step()
    return job


@pytest.mark.parametrize("ranks", [2, 8])
@given(offset=st.floats(0, PERIOD), late=st.sampled_from([0.0, 0.01, 0.1]))
def test_a_stopped_rank_is_found_within_two_or_three_seconds(ranks: int, offset: float, late: float) -> None:
    job = trained(ranks)
    job.lasts(offset)
    job.do(IS_STOPPED, WAITS)
    began = job.now
    job.lasts(4.0, late=late)
    at, sign = job.signs[0]
    assert CONFIRM <= at - began <= CONFIRM + PERIOD + 6 * late + 0.01
    assert sign.local_rank == 0
    assert began <= sign.since <= began + PERIOD + 2 * late + 0.01
    assert "Rank 0 (pid 1000) has been stopped (state T) for 2." in sign.text
    waits = "rank 1 waits" if ranks == 2 else f"ranks 1-{ranks - 1} wait"
    assert sign.text.endswith(f"samples without a context switch, and {waits}.")


def test_a_sign_is_told_as_long_as_it_holds() -> None:
    job = trained()
    job.do(WAITS, IS_STOPPED, WAITS)
    job.lasts(4.0)
    assert len(job.signs) >= 3
    told = len(job.signs)
    job.do(WAITS)
    job.lasts(4.0)
    assert len(job.signs) == told


def test_a_main_thread_that_is_gone_while_others_live() -> None:
    job = trained()
    job.do(WAITS, WAITS, HAS_NO_MAIN_THREAD, WAITS)
    job.lasts(4.0)
    assert {sign.local_rank for _, sign in job.signs} == {2}
    text = "has had no main thread (state Z) for 2.0 s, while others of its threads are alive"
    assert text in job.signs[0][1].text


def stops(job: Simulation, finished: int = -1, silent: tuple[int, ...] = ()) -> None:
    """Rank 0 is stopped; `finished`, `silent`: ranks that have finished, or give no signs of life."""
    for rank in job.ranks:
        rank.finished, rank.reports = rank.number == finished, rank.number not in silent
    job.do(IS_STOPPED, WAITS)


def suspends(job: Simulation) -> None:
    """Rank 0 and the launcher are stopped: the job is being suspended."""
    job.launcher_stopped = True
    stops(job)


NEVER: Mapping[str, tuple[int, Callable[[Simulation], object]]] = {
    "all are stopped": (4, lambda job: job.do(IS_STOPPED)),
    "several are stopped": (4, lambda job: job.do(IS_STOPPED, IS_STOPPED, WAITS)),
    "all but one that waits for a disk": (4, lambda job: job.do(IS_STOPPED, READS_A_DISK)),
    "a debugger": (4, lambda job: job.do(IS_TRACED, WAITS)),
    "a process that has ended": (4, lambda job: job.do(IS_A_ZOMBIE, WAITS)),
    "a process that takes long to end": (4, lambda job: job.do(IS_DYING, WAITS)),
    "another rank has ended": (4, lambda job: job.do(IS_STOPPED, IS_GONE, WAITS)),
    "another rank is a zombie": (4, lambda job: job.do(IS_STOPPED, IS_A_ZOMBIE, WAITS)),
    "a disk": (4, lambda job: job.do(READS_A_DISK, WAITS)),
    "all ranks wait": (4, lambda job: job.do(WAITS)),
    "all ranks wait and are silent": (4, lambda job: job.do(WAITS_QUIETLY)),
    "nothing in it moves": (4, lambda job: job.do(WAITS, ASLEEP, WAITS)),
    "no rank is awake": (4, lambda job: job.do(IS_STOPPED, READS_A_DISK, IS_TRACED)),
    "a rank alone on its node": (1, stops),
    "the launcher is stopped too": (4, suspends),
    "it has finished": (2, lambda job: stops(job, finished=0)),
    "the only witness has finished": (2, lambda job: stops(job, finished=1)),
    "no rank is known to wait for it": (3, lambda job: stops(job, silent=(1, 2))),
    "its own silence says nothing": (3, lambda job: stops(job, silent=(0,))),
}


@pytest.mark.parametrize("name", NEVER)
def test_what_is_never_a_sign(name: str) -> None:
    count, happens = NEVER[name]
    job = trained(count)
    happens(job)
    job.lasts(600.0)
    assert job.signs == []


def test_a_stopped_rank_for_which_nobody_waits() -> None:
    job = trained(3)
    job.do(IS_STOPPED, COMPUTES)
    for _ in range(200):
        job.lasts(0.3)
        job.ranks[1].activity = job.now
    assert job.signs == []


def test_stopped_and_continued_in_turns_is_not_stopped() -> None:
    """As cpulimit does it: stopped at every look, and yet it continues."""
    job = trained(2)
    for _ in range(200):
        job.do(IS_STOPPED, WAITS)
        job.lasts(1.0)
    assert job.signs == []


def test_threads_that_cannot_be_read_confirm_nothing() -> None:
    detection, now = EarlyDetection(), 10.0
    ranks = [Rank(0, IS_STOPPED), Rank(1, WAITS)]
    for _ in range(100):
        blind = {rank.number: rank.sample(now, threads=False) for rank in ranks}
        assert detection.observe(now, blind) is None
        now = max(now, detection.next_sample)
    assert now > 40  # and the looks end


@pytest.mark.parametrize("away", [1.0, 5.0, 3600.0])
def test_nothing_counts_across_a_look_that_came_late(away: float) -> None:
    job = trained(2)
    job.do(IS_STOPPED, WAITS)
    job.lasts(1.0)
    job.watched = False
    job.lasts(away)
    job.watched = True
    began = job.now
    job.lasts(CONFIRM - 0.05)
    assert job.signs == []
    job.lasts(1.0)
    assert job.signs[0][0] >= began + CONFIRM


def test_another_process_with_the_same_number_begins_anew() -> None:
    job = trained(2)
    job.do(IS_STOPPED, WAITS)
    job.lasts(1.5)
    job.ranks[0].start_time += 1
    began = job.now
    job.lasts(4.0)
    assert job.signs[0][0] >= began + CONFIRM


# 100,000 healthy steps, with all that makes a healthy job look ill.


def one(job: Simulation, dice: random.Random, what: tuple[str, bool], seconds: float) -> None:
    """One rank does this, the others have come to the collective and wait."""
    job.do(dice.choice([WAITS, WAITS, COMPUTES, WAITS_QUIETLY]))
    dice.choice(job.ranks).does = what
    job.lasts(seconds)


def suspended(job: Simulation, dice: random.Random) -> None:
    """By SIGSTOP to all ranks, one after the other; the monitor looks on, or is stopped as well."""
    stopped = dice.sample(job.ranks, len(job.ranks))
    job.launcher_stopped = dice.random() < 0.5
    job.watched = dice.random() < 0.5
    for rank in stopped:
        rank.does = IS_STOPPED
        job.lasts(dice.uniform(0, 0.01))
    job.lasts(dice.uniform(1, 60))
    job.watched = True
    for rank in stopped:
        job.lasts(dice.uniform(0, 0.4))
        rank.does = COMPUTES
    job.launcher_stopped = False


def frozen(job: Simulation, dice: random.Random) -> None:
    """A frozen cgroup, a paused machine: no process looks, no process moves."""
    job.watched = False
    job.lasts(dice.uniform(1, 300))
    job.watched = True


def pause(job: Simulation, dice: random.Random) -> None:
    """Stopped for a second, several times."""
    for _ in range(dice.randint(1, 3)):
        one(job, dice, IS_STOPPED, 1.0)
        one(job, dice, COMPUTES, dice.uniform(0.01, 0.3))


def checkpoint(job: Simulation, dice: random.Random) -> None:
    """Rank 0 alone writes; a slow disk, or one answer of a storage service, for which every thread waits."""
    for what in dice.choices([READS_A_DISK, COMPUTES, ASLEEP], k=dice.randint(1, 4)):
        job.do(what, dice.choice([WAITS, WAITS_QUIETLY]))
        job.lasts(dice.uniform(0.5, 60))


def blind(job: Simulation, dice: random.Random) -> None:
    """The monitor alone is stopped, in the middle of a rank's pause."""
    one(job, dice, IS_STOPPED, 0.5)
    frozen(job, dice)
    job.lasts(0.5)


DISTURBANCES: tuple[Callable[[Simulation, random.Random], None], ...] = (
    *(checkpoint, pause, suspended, frozen, blind),
    lambda job, dice: job.step(dice.uniform(5, 60)),  # validation
    lambda job, dice: one(job, dice, COMPUTES, dice.uniform(0.5, 4)),  # garbage is collected
    lambda job, dice: one(job, dice, READS_A_DISK, dice.uniform(1, 20)),
    lambda job, dice: one(job, dice, ASLEEP, dice.uniform(0.5, 25)),  # its loader is slow
    lambda job, dice: one(job, dice, IS_TRACED, dice.uniform(1, 120)),
)


def healthy_steps(count: int, seed: int) -> Simulation:
    dice = random.Random(seed)
    job = Simulation(4)
    for number in range(count):
        if number % 80 == 79:
            dice.choice(DISTURBANCES)(job, dice)
        job.step(dice.uniform(0.05, 0.25))
    return job


@pytest.mark.slow
def test_a_hundred_thousand_healthy_steps_without_a_verdict() -> None:
    began = time.process_time()
    jobs = [healthy_steps(25_000, seed) for seed in range(4)]
    assert [job.signs for job in jobs] == [[]] * 4
    assert sum(job.looks for job in jobs) > 50_000
    assert time.process_time() - began < 60, "too slow to be run each time"


@given(seed=st.integers(0, 1 << 30), late=st.floats(0, 0.3))
def test_a_rank_that_is_stopped_for_good_is_found_after_any_of_that(seed: int, late: float) -> None:
    job = healthy_steps(170, seed)
    assert job.signs == []
    job.do(WAITS, WAITS, IS_STOPPED, WAITS)
    began = job.now
    job.lasts(10.0, late=late)
    at, sign = job.signs[0]
    assert sign.local_rank == 2
    assert at - began <= 3.0 + 6 * late


# Real processes.

TWO_THREADS = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""
NO_MAIN_THREAD = """
import ctypes, threading, time
def keep():
    while True:
        time.sleep(0.01)
threading.Thread(target=keep).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def pair(spawn: Spawner, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    job = Pair(spawn, tmp_path, getattr(request, "param", TWO_THREADS))
    yield job
    job.close()


class Pair:
    """Two processes with boards of their own; what they do there the test does."""

    def __init__(self, spawn: Spawner, folder: Path, code: str) -> None:
        self.ranks, self.detection = [], EarlyDetection()
        for number, process in enumerate([spawn.python(code), spawn.python(TWO_THREADS)]):
            process.wait_for("ready")
            board = Board.create(str(folder / f"{number}.board"), Limits())
            board.bind_process(identity(process, rank=number, started_ns=time.monotonic_ns()))
            self.ranks.append(monitored.Rank(process, board))
            self.ranks[-1].hand.connect()
            self.ranks[-1].hand.heartbeat(1)
        self.readers = [BoardReader(rank.board.path) for rank in self.ranks]
        self.process = self.ranks[0].process

    def look(self) -> Sign | None:
        """One look, when it is wanted."""
        time.sleep(max(0.0, self.detection.next_sample - time.monotonic()))
        now = time.monotonic_ns()
        ranks = {}
        for number, reader in enumerate(self.readers):
            found = sample(reader.snapshot(), now, threads=number in self.detection.wants_threads)
            assert found is not None
            ranks[number] = found
        return self.detection.observe(now / 1e9, ranks)

    def close(self) -> None:
        for reader, rank in zip(self.readers, self.ranks, strict=True):
            reader.close()
            rank.close()


def test_a_real_process_that_is_stopped(pair: Pair) -> None:
    assert pair.look() is None
    began = time.monotonic()
    pair.process.send_signal(signal.SIGSTOP)
    sign = wait_until(pair.look)
    assert sign.local_rank == 0 and "stopped (state T)" in sign.text
    assert time.monotonic() - began >= CONFIRM
    assert f"(pid {pair.process.pid})" in sign.text
    pair.process.send_signal(signal.SIGCONT)
    wait_until(lambda: pair.look() is None)


@pytest.mark.parametrize("pair", [NO_MAIN_THREAD], indirect=True, ids=["no main thread"])
def test_a_real_process_without_its_main_thread(pair: Pair) -> None:
    wait_until(lambda: state(pair.process) == "Z")
    sign = wait_until(pair.look)
    assert sign.local_rank == 0 and "no main thread" in sign.text


def test_a_real_process_that_has_ended_and_was_not_waited_for(pair: Pair) -> None:
    os.kill(pair.process.pid, signal.SIGKILL)
    wait_until(lambda: state(pair.process) == "Z")
    end = time.monotonic() + CONFIRM + 2 * PERIOD
    while time.monotonic() < end:
        assert pair.look() is None


def test_threads_of_a_process_that_is_not_there() -> None:
    assert thread_counts(1 << 30) is None
    counts = thread_counts(os.getpid())
    assert counts and counts[os.getpid()].switches > 0
