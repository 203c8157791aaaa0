"""Jobs on one node, and one on two, whose ranks agree where they stop: real launchers, real ranks, 1 ms steps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, Node
from tests.jobs import Job, Jobs
from tests.processes import Spawner

# -- a TCP proxy: a store that is far away, or busy -----------------------------------------------------------


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """In the order of arrival, each piece `delay` seconds after it came."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            loop.call_later(delay, writer.write, piece)
    loop.call_later(delay, writer.close)


@contextlib.contextmanager
def slow_proxy(target: int, delay: float) -> Iterator[int]:
    """A port of loopback from which all is passed on to another port of it, `delay` seconds later."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(_relay(reader, back, delay), _relay(there, writer, delay))
        except asyncio.CancelledError:
            writer.close()
            back.close()

    async def end() -> None:
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.run_until_complete(end())
        loop.close()


# -- the program of the ranks: lockstep without torch, a question at each boundary whether they stop there ------

# `begin` makes a rank's word known to all ranks of the job and waits for theirs, as a collective does. It works for
# ranks of one machine, also of several launchers, that have the folder $NOTES in common.
TRAINS = """
import mmap
from holdfast.fault_tolerance.stop import StopPoint, position

WORLD = int(os.environ["WORLD_SIZE"])
_handle = os.open(f"{os.environ['NOTES']}/begun-{CYCLE}", os.O_RDWR | os.O_CREAT)
os.ftruncate(_handle, 4096)
_begun = memoryview(mmap.mmap(_handle, 4096)).cast("q")

def begin(batch):
    _begun[RANK] = batch
    while any(other < batch for other in _begun[:WORLD]):
        time.sleep(0.0002)

point = StopPoint.find()
signal.signal(signal.SIGTERM, lambda number, frame: point.notice(number))

def train(batches=10**9, seconds=0.001):
    point.begin()
    for batch in range(1, batches + 1):
        begin(batch)
        time.sleep(seconds)
        if batch == 20:
            say("trains as", os.getpid())
        if point.passes(position(batch)):
            break
    left = point.deadline and point.deadline - time.monotonic()
    say("stopped after", batch, "wanted", point.wanted, "left", left)
    point.end()
"""


# -- jobs ----------------------------------------------------------------------------------------------------


def stopped_at(ranks: int, *launchers: Job | Node) -> int:
    """The one batch that all of so many ranks stopped after."""
    said = "".join(each.spawned.out() for each in launchers)
    found = dict(re.findall(r"^rank (\d+) cycle 0 stopped after (\d+) wanted True", said, re.MULTILINE))
    assert sorted(found) == [str(rank) for rank in range(ranks)]
    (batch,) = set(found.values())
    return int(batch)


def test_launcher_and_rank_signalled_all_ranks_stop_at_one_batch(jobs: Jobs) -> None:
    job = jobs(TRAINS + "train()", "--term-timeout", "60", "--max-restarts", "3", nproc=3)
    pids = job.hear(r"trains as (\d+)", ranks=[0, 1, 2])
    os.kill(int(pids[1]), signal.SIGTERM)
    job.spawned.send_signal(signal.SIGTERM)
    said = job.end(0)
    batch = stopped_at(3, job)
    assert f"all ranks stop after batch {batch}\n" in said
    lefts = [float(left) for left in re.findall(r"left ([\d.]+)", job.spawned.out())]
    assert len(lefts) == 3 and all(30 < left < 60 for left in lefts)
    (record,) = job.journal("stop_agreed")
    assert record["place"] == f"after batch {batch}" and record["proposals"] >= 1
    assert record["milliseconds"] > 0
    assert len(job.journal("stop_wanted")) == len(job.journal("preemption")) == 1
    assert not job.journal("restart") and "FAILED" not in said


def test_rank_signalled_the_program_in_the_documentation_stops(jobs: Jobs) -> None:
    page = (Path(__file__).parents[2] / "docs" / "signals-and-preemption.md").read_text()
    (program,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "StopPoint" in text)
    before = (
        TRAINS
        + """
loader = range(10**9)
def train(batch):
    begin(batch + 1)
    time.sleep(0.001)
    if batch == 20:
        say("trains as", os.getpid())
def save():
    say("stopped after", batches, "wanted", stop.wanted)
del point
"""
    )
    job = jobs(before + program, "--term-timeout", "60")
    pids = job.hear(r"trains as (\d+)", ranks=[0, 1])
    os.kill(int(pids[1]), signal.SIGTERM)
    said = job.end(0)
    batch = stopped_at(2, job)
    assert f"all ranks stop after batch {batch}\n" in said
    assert "rank 1 received a stop signal (SIGTERM): stopping all ranks" in said
    assert job.journal("preemption")[0]["by"] == "rank 1"
    assert len(job.journal("stop_wanted")) == len(job.journal("preemption")) == 1
    assert not job.journal("restart") and "FAILED" not in said


ONE_DOES_NOT = (
    TRAINS
    + """
if RANK == 1:  # knows of no agreed stop: it has a way of its own
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    say("ready")
    wait()
else:
    point.begin()
    batch = 0
    while not point.given_up:
        batch += 1
        time.sleep(0.001)
        if batch == 20:
            say("trains as", os.getpid())
        assert not point.passes(position(batch))
    point.end()
    say("gave up")
"""
)


def test_a_rank_that_takes_no_part_is_named_and_nobody_waits(jobs: Jobs) -> None:
    job = jobs(ONE_DOES_NOT, "--term-timeout", "60")
    job.hear("trains", ranks=[0])
    job.hear("ready", ranks=[1])
    job.spawned.send_signal(signal.SIGTERM)
    said = job.end(0)
    assert job.lines("rank 0 cycle 0 gave up")
    assert "(rank 1 does not take part (the program does not use agreed stops)); each rank stops by" in said
    assert [record["reason"] for record in job.journal("stop_withdrawn")] == ["rank 1 does not take part"]


def test_a_training_that_ends_before_the_place_is_left_alone(jobs: Jobs) -> None:
    """The signal comes to a rank that is in its last batch."""
    text = (
        TRAINS
        + """
if RANK == 0:
    point.begin()
    begin(1)
    say("trains as", os.getpid())
    while not point.wanted:
        time.sleep(0.001)
    begin(2)
    point.end()
else:
    point.begin()
    begin(1)
    begin(2)
    say("passes", point.passes(position(2)))
"""
    )
    job = jobs(text, "--term-timeout", "60")
    job.hear("trains", ranks=[0])
    job.spawned.send_signal(signal.SIGTERM)
    said = job.end(0)
    assert job.lines("rank 1 cycle 0 passes False") and "no agreement" not in said
    (record,) = job.journal("stop_withdrawn")
    assert "ended" in record["reason"] and "rank 0" in record["reason"]


def test_ranks_that_begin_after_the_signal_stop_together(jobs: Jobs) -> None:
    text = """
say("ready")
while not point.wanted:
    time.sleep(0.001)
time.sleep(0.1 * RANK)
train()
"""
    job = jobs(TRAINS + text, "--term-timeout", "60")
    job.hear("ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGTERM)
    said = job.end(0)
    batch = stopped_at(2, job)
    assert f"all ranks stop after batch {batch}\n" in said and "no agreement" not in said
    assert "Received Signals.SIGTERM death signal, shutting down workers" in said
    assert len(job.journal("stop_wanted")) == len(job.journal("stop_agreed")) == 1


@pytest.mark.slow
def test_ranks_of_both_nodes_stop_at_one_batch_by_a_slow_store(spawn: Spawner, tmp_path: Path) -> None:
    """1 ms steps, 200 ms for an answer of the store; only the node that does not lead gets the signal."""
    cluster = Cluster(spawn, tmp_path)
    script = cluster.script(TRAINS + "train()")
    flags = "--term-timeout", "60", "--ft-preempted-exit-code", "75"
    a = cluster.launch("a", script, *flags, env={"OMP_NUM_THREADS": "1"})
    host = cluster.port
    with slow_proxy(host, delay=0.1) as cluster.port:
        b = cluster.launch("b", script, *flags, env={"OMP_NUM_THREADS": "1"})
        a.hear("trains", 0)
        b.hear("trains", 0)
        b.spawned.send_signal(signal.SIGTERM)
        said_b = b.end(75)
        said_a = a.end(75)
    batch = stopped_at(4, a, b)
    for said in (said_a, said_b):
        assert f"all ranks stop after batch {batch}" in said and "FAILED" not in said
    assert "node " in said_a and "received a stop signal (SIGTERM): stopping all ranks" in said_a
    assert "Received Signals.SIGTERM death signal" in said_b
    records = [node.journal("stop_agreed")[0] for node in (a, b)]
    assert [record["place"] for record in records] == [f"after batch {batch}"] * 2
