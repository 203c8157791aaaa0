"""The load of a quiet job on its store: how long a heartbeat takes to be readable, with 2,048 launchers.

One real server in a process of its own. Each launcher is a connection of torch's client that writes and reads what
the controller of a node in RUN wants, at its intervals; a few threads serve all connections. A latency counts
from the moment at which the operation was due, so it includes waiting for a thread: a launcher of its own has less.
torch's `set` has no answer. So a sample of the writes is followed by a read of the same key on the same connection.
Does not cover: the network between machines, and the start of a cycle, when all launchers write at once.
"""

from __future__ import annotations

import heapq
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import psutil
from torch.distributed import PrefixStore, Store, TCPStore

from benchmarks.table import Row, median, percentile
from holdfast.fault_tolerance.launcher import store as client
from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control import next_deadline, step, watched_keys
from holdfast.fault_tolerance.launcher.control.node import Node, Start
from holdfast.fault_tolerance.launcher.control.records import Member, Membership, Settings

SIZES = (256, 1024, 2048)
SECONDS, SETTLED = 15.0, 4.0  # measured, and before that
PROCESSES, THREADS = 2, 8  # of the clients; threads of each
CONFIRMED = 10  # of so many writes one is read back
LOCAL = "127.0.0.1"
PREFIX = "holdfast/load"


@dataclass
class Share:
    """What one thread measured: seconds of latencies, and how many operations it carried out."""

    writes: list[float] = field(default_factory=list)  # from due until readable
    round_trips: list[float] = field(default_factory=list)  # of these writes, without waiting for a thread
    reads: list[float] = field(
        default_factory=list
    )  # from due until the values of all keys that were due are there
    operations: int = 0


def together(shares: Iterable[Share]) -> Share:
    """What all of them measured."""
    total = Share()
    for share in shares:
        total.writes += share.writes
        total.round_trips += share.round_trips
        total.reads += share.reads
        total.operations += share.operations
    return total


# -- what a launcher does ---------------------------------------------------------------------------------------


def quiet_node(members: Membership, number: int) -> tuple[Node, m.Put, float]:
    """The controller of this node in RUN, its heartbeat, and the seconds between two of them."""
    me = members.members[number]
    settings = Settings(me, least=len(members.members), most=len(members.members), is_host=number == 0)
    node = Node(settings, membership=members, phase=Start("", 0))
    step(node, m.Tick(), 0.0)
    step(node, m.Started(pids={0: 1}), 0.0)
    beats: list[tuple[float, m.Put]] = []
    while len(beats) < 3:
        now = next_deadline(node) or 0.0
        beats += [(now, action) for action in step(node, m.Tick(), now) if isinstance(action, m.Put)]
    return node, beats[-1][1], beats[-1][0] - beats[-2][0]


def membership(nodes: int) -> Membership:
    """As many nodes of one rank each."""
    return Membership(tuple(Member(f"node-{number:05}:{10000 + number}", 1) for number in range(nodes)))


@dataclass(eq=False)
class Launcher:
    """One launcher's connection, and when each of its operations is due. `None` stands for the heartbeat."""

    store: Store
    beat: m.Put
    intervals: dict[str | None, float]
    due: dict[str | None, float]
    known: dict[str, str] = field(default_factory=dict)
    beats: int = 0

    @property
    def next(self) -> float:
        """When the next operation is due."""
        return min(self.due.values())

    def serve(self, share: Share, measured: bool) -> int:
        """Carry out what is due, as `StoreClient` does; returns how many operations that were."""
        now = time.monotonic()
        due = {key: at for key, at in self.due.items() if at <= now}
        if None in due:
            self.due[None] = due[None] + self.intervals[None]
            return self._write(due[None], share, measured)
        keys = [key for key in due if key is not None]
        self.due.update((key, now + self.intervals[key]) for key in keys)
        count = _round_trips(keys, self.known)
        self.known.update(client._read(self.store, keys, self.known))
        if measured:
            share.reads.append(time.monotonic() - min(due.values()))
        return count

    def _write(self, due: float, share: Share, measured: bool) -> int:
        self.beats += 1
        began, beat = time.monotonic(), m.Put(self.beat.key, str(self.beats))
        client._carry_out(self.store, beat)
        if self.beats % CONFIRMED:
            return 1
        if client._carry_out(self.store, beat.key) != beat.value:
            raise RuntimeError(f"{beat.key} has another value than the one that was written")
        if measured:
            now = time.monotonic()
            share.writes.append(now - due)
            share.round_trips.append(now - began)
        return 2


def _round_trips(keys: list[str], known: dict[str, str]) -> int:
    """Those of one read of these keys: one for all that have a value, one for each other."""
    present = sum(bool(known.get(key)) for key in keys)
    return len(keys) - present + bool(present)


# -- the processes ----------------------------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """The server, made as torch's rendezvous makes it; ends when the other end of the pipe is closed."""
    server = TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    pipe.send(server.port)
    try:
        pipe.recv()
    except EOFError:
        del server


def drive(port: int, nodes: int, numbers: range, seconds: float, barrier: Barrier, pipe: Connection) -> None:
    """The launchers with these numbers, in one process."""
    members = membership(nodes)
    stores = [TCPStore(LOCAL, port, is_master=False, wait_for_workers=False) for _ in numbers]
    launchers = [_launcher(store, members, number) for store, number in zip(stores, numbers, strict=True)]
    barrier.wait()
    began = time.monotonic()
    for launcher in launchers:
        launcher.due = {key: began + at for key, at in launcher.due.items()}
    shares = [Share() for _ in range(THREADS)]
    threads = []
    for index, share in enumerate(shares):
        arguments = (launchers[index::THREADS], share, began, seconds)
        threads.append(threading.Thread(target=_drive, args=arguments))
        threads[-1].start()
    time.sleep(SETTLED)
    barrier.wait()  # measured from here
    for thread in threads:
        thread.join()
    pipe.send(together(shares))


def _launcher(store: Store, members: Membership, number: int) -> Launcher:
    """Its heartbeat has any phase. Its reads begin when it finds that the ranks may start: a read with `node.quick`."""
    node, beat, every = quiet_node(members, number)
    chance = random.Random(number)
    watched, began = watched_keys(node), chance.uniform(0.0, node.quick)
    due: dict[str | None, float] = {**dict.fromkeys(watched, began), None: chance.uniform(0.0, every)}
    return Launcher(PrefixStore(PREFIX, store), beat, {**watched, None: every}, due, beats=number)


def _drive(launchers: list[Launcher], share: Share, began: float, seconds: float) -> None:
    """Serve each launcher when something of it is due."""
    begins, ends = began + SETTLED, began + SETTLED + seconds
    queue = [(each.next, index) for index, each in enumerate(launchers)]
    heapq.heapify(queue)
    while (at := queue[0][0]) < ends and (now := time.monotonic()) < ends:
        if at > now:
            time.sleep(min(at, ends) - now)
            continue
        launcher, index = launchers[queue[0][1]], queue[0][1]
        measured = at >= begins
        count = launcher.serve(share, measured)
        share.operations += count if measured else 0
        heapq.heapreplace(queue, (launcher.next, index))


# -- the figures ------------------------------------------------------------------------------------------------


def load(nodes: int, seconds: float) -> tuple[Share, float]:
    """Put the load of a quiet job of so many nodes on one server; also the server's share of a core."""
    # torch looks up a host name for a warning: 5 s for each 25th connection where no name server answers.
    os.environ.update(TORCH_CPP_LOG_LEVEL="ERROR", RES_OPTIONS="timeout:1 attempts:1")
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    theirs.close()
    port, barrier = ours.recv(), spawn.Barrier(PROCESSES + 1)
    pipes, clients = [], []
    for index in range(PROCESSES):
        here, there = spawn.Pipe()
        numbers = range(index, nodes, PROCESSES)
        one = spawn.Process(target=drive, args=(port, nodes, numbers, seconds, barrier, there), daemon=True)
        one.start()
        there.close()
        pipes.append(here)
        clients.append(one)
    barrier.wait()  # all are connected
    barrier.wait()  # measured from here
    before, began = _cpu(server.pid), time.monotonic()
    time.sleep(seconds)
    cpu = (_cpu(server.pid) - before) / (time.monotonic() - began)
    share = together(pipe.recv() for pipe in pipes)
    for one in clients:
        one.join()
    ours.close()
    server.join()
    return share, cpu


def _cpu(pid: int | None) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def store_load(runs: int, peer: bool) -> list[Row]:
    """One run of each size: each has thousands of samples."""
    rows = []
    for nodes in SIZES:
        share, cpu = load(nodes, SECONDS)
        of = f"store with {nodes:,} launchers of a quiet job"
        late, reads = (percentile(each, 99) * 1e3 for each in (share.writes, share.reads))
        note = f"{spread(share.writes)}; {spread(share.round_trips)} without waiting for a thread of the benchmark"
        rows += [
            Row(
                f"{of}: a heartbeat until it can be read, 99th percentile", "ms", [late], limit=200, note=note
            ),
            Row(
                f"{of}: reads that are due at once, 99th percentile", "ms", [reads], note=spread(share.reads)
            ),
            Row(f"{of}: operations per second", "", [share.operations / SECONDS]),
            Row(f"{of}: CPU of the server", "%", [cpu * 100]),
        ]
    return rows


def spread(latencies: list[float]) -> str:
    """Median, 99th percentile and longest."""
    middle, late = median(latencies) * 1e3, percentile(latencies, 99) * 1e3
    return f"median {middle:.2g}, p99 {late:.2g}, longest {max(latencies) * 1e3:.2g} ms"
