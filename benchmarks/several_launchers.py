"""One job over several launchers on this machine: started, watched by what its ranks print, ended with all it started.

Owns every process of the job: none outlives the block, whether it ends by itself, by an error, Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from benchmarks.faults.run import free_port
from benchmarks.launchers import command, environment
from benchmarks.restart import JOINED

END = 60.0  # seconds that the launchers have after SIGTERM
MARK = "HOLDFAST_SEVERAL_LAUNCHERS"
SIGNALS = signal.SIGINT, signal.SIGTERM


@dataclass
class Job:
    """The launchers, the first of which hosts the store; `world` ranks under them, and what all of these print."""

    world: int
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    launchers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=30))

    def joined(self, limit: float) -> tuple[list[int], float] | None:
        """All ranks' pids once a living process has joined as each of them, and when the last one did.

        Cycles do not count: each launcher of torchrun numbers its own. None if it takes longer than `limit` seconds.
        """
        ranks: dict[int, tuple[int, float]] = {}
        until = time.monotonic() + limit
        while len(ranks) < self.world:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if found := JOINED.match(line):
                ranks[int(found[2])] = int(found[3]), float(found[4])
            if len(ranks) == self.world:
                ranks = {rank: one for rank, one in ranks.items() if psutil.pid_exists(one[0])}
        return [pid for pid, _ in ranks.values()], max(at for _, at in ranks.values())

    def victim(self, pids: list[int]) -> int | None:
        """One of these ranks, of the last launcher, so not of the store's host. None if all of its are gone."""
        return next((one.pid for one in _below(self.launchers[-1]) if one.pid in pids), None)

    def end(self) -> None:
        """SIGTERM to the launchers; SIGKILL to whatever is left of the job after that."""
        below = [process for one in self.launchers for process in _below(one)]
        for one in self.launchers:
            one.terminate()
        until = time.monotonic() + END
        for one in self.launchers:
            with suppress(subprocess.TimeoutExpired):
                one.wait(max(0.0, until - time.monotonic()))
        while left := [process for process in {*below, *self._marked()} if _lives(process)]:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1.0)

    def _marked(self) -> list[psutil.Process]:
        """By the environment: what has lost its launcher too, but nothing that has written its title over it."""
        everyone = psutil.process_iter(["environ"])
        return [process for process in everyone if (process.info["environ"] or {}).get(MARK) == self.mark]


def _below(launcher: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(launcher.pid).children(recursive=True)
    return []


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def several(launcher: list[str], nodes: int, ranks: int) -> Iterator[Job]:
    """A job of `nodes` launchers with `ranks` ranks each; one launcher has no rendezvous with others."""
    job = Job(nodes * ranks)
    out, errors = _pipe(job.lines.put), _pipe(job.errors.append)
    before = {number: signal.signal(number, _leave) for number in SIGNALS}
    try:
        shared = ["--max-restarts=1000"]
        if nodes > 1:
            shared += [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-id={job.mark}"]
            shared += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1"]
        for node in range(nodes):
            place = (f"--node-rank={node}", f"--rdzv-conf=is_host={int(node == 0)}") if nodes > 1 else ()
            line = command(launcher, ranks, "all_reduce.py", "1000000", options=(*shared, *place))
            variables = environment(**{MARK: job.mark})
            job.launchers.append(subprocess.Popen(line, env=variables, stdout=out, stderr=errors))
        yield job
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the end is on its way
        os.close(out)
        os.close(errors)
        job.end()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def _pipe(put: Callable[[str], object]) -> int:
    """Where to write: a thread hands each line over."""
    read, write = os.pipe()

    def pump() -> None:
        with open(read, errors="replace") as lines:
            for line in lines:
                put(line)

    threading.Thread(target=pump, daemon=True).start()
    return write
