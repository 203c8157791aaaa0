"""A rank is killed with -9: how long until every restarted rank has done its first all-reduce?

Under one launcher or several on this machine; with standbys waiting, with none (ranks are forked when they are needed)
and with warm start off; torchrun and NVRx beside it, in turns of one job each. Also the imports that warm start does
ahead, and the launcher's memory over hundreds of restarts.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from pathlib import Path

import psutil

import holdfast
from benchmarks.environments import NVRX, beside, nvrx
from benchmarks.jobs import HOLDFAST, TORCHRUN, Job, below, by_turns, command, finish, free_port
from benchmarks.table import Row, median, percentile

JOINED = re.compile(r"joined (\d+) (\d+) (\d+) ([\d.]+)")
"""What programs/all_reduce.py prints: cycle, rank, pid, time.time()."""
NO_STORE_SHARING = "torchrun, store sharing off"
START, RESTART = 300.0, 60.0
"""Seconds that the first start and a restart may take."""


class Training(Job):
    """all_reduce.py under one launcher or several, the first of which hosts the store; what all of these print."""

    def __init__(
        self,
        launcher: list[str],
        nodes: int,
        ranks: int,
        options: tuple[str, ...] = (),
        program: str = "all_reduce.py",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(grace=60.0)
        self._world = nodes * ranks
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.errors: deque[str] = deque(maxlen=30)
        shared = ["--max-restarts=1000", *options]
        if nodes > 1:
            shared += [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-id={uuid.uuid4().hex}"]
            shared += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1"]
        out, errors = _pipe(self._lines.put), _pipe(self.errors.append)
        for node in range(nodes):
            place = (f"--node-rank={node}", f"--rdzv-conf=is_host={int(node == 0)}") if nodes > 1 else ()
            line = command(launcher, ranks, program, "1000000", options=(*shared, *place))
            self.start(line, variables, stdout=out, stderr=errors)
        os.close(out)
        os.close(errors)

    def joined(self, limit: float) -> tuple[list[int], float] | None:
        """All ranks' pids once a living process has joined as each of them, and when the last one did.

        Cycles do not count: each launcher of torchrun numbers its own. None if it takes longer than `limit` seconds.
        """
        ranks: dict[int, tuple[int, float]] = {}
        until = time.monotonic() + limit
        while len(ranks) < self._world:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if found := JOINED.match(line):
                ranks[int(found[2])] = int(found[3]), float(found[4])
            if len(ranks) == self._world:
                ranks = {rank: one for rank, one in sorted(ranks.items()) if psutil.pid_exists(one[0])}
        return [pid for pid, _ in ranks.values()], max(at for _, at in ranks.values())

    def victim(self, pids: list[int]) -> int | None:
        """The last of these ranks that the last launcher has; None if it has just restarted its ranks by itself."""
        own = {one.pid for one in below(self.launchers[-1].pid)}
        return next((pid for pid in reversed(pids) if pid in own), None)


def _pipe(put: Callable[[str], object]) -> int:
    """Where to write: a thread hands each line over."""
    read, write = os.pipe()

    def pump() -> None:
        with open(read, errors="replace") as lines:
            for line in lines:
                put(line)

    threading.Thread(target=pump, daemon=True).start()
    return write


def restarts(
    launcher: list[str],
    ranks: int,
    count: int,
    *options: str,
    nodes: int = 1,
    standbys: bool = False,
    wait: float = 0.0,
    program: str = "all_reduce.py",
    variables: Mapping[str, str] | None = None,
) -> list[float]:
    """For each of `count` restarts of one job, seconds from the kill to the last rank's first all-reduce.

    None after one that takes too long, so the list may be shorter.

    Args:
        standbys: Kill as soon as all standbys wait.
        wait: Seconds from the first all-reduce to the kill.
    """
    seconds: list[float] = []
    with Training(launcher, nodes, ranks, options, program, variables) as job:
        came = job.joined(START)
        while came and len(seconds) < count:
            if standbys:
                for each in job.launchers:
                    until_all_wait(each.pid, ranks)
            time.sleep(wait)
            victim, killed = job.victim(came[0]), time.time()
            if victim:
                os.kill(victim, signal.SIGKILL)
            came = job.joined(RESTART)
            if came and victim:
                seconds.append(came[1] - killed)
        if not came:
            print(f"{launcher[-1]}, {nodes} × {ranks}: not back in time:", *job.errors, file=sys.stderr)
    return seconds


def _all(of_jobs: list[list[float]]) -> list[float]:
    return [second for one in of_jobs for second in one]


def reserve(launcher: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """A launcher's zygotes and its standbys, by their names."""
    found: dict[str, list[psutil.Process]] = {"zygote": [], "standby": []}
    for child in psutil.Process(launcher).children():
        with suppress(psutil.NoSuchProcess):
            if (name := child.name().removeprefix("hf-")) in found:
                found[name].append(child)
    return found["zygote"], found["standby"]


def until_all_wait(launcher: int, count: int) -> None:
    """Until so many standbys are there, and no zygote that is to take the place of theirs."""
    deadline = time.monotonic() + 120
    while [len(each) for each in reserve(launcher)] != [1, count]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} standbys are not there after 120 s")
        time.sleep(0.02)


def restart(runs: int, peer: bool) -> list[Row]:
    """With 2, 4 and 8 ranks under one launcher; the limit is a part of torchrun's time."""
    theirs = nvrx() if peer else None
    rows: list[Row] = []
    for ranks, part in ((2, 6), (4, 10), (8, 15)):
        seen = by_turns(
            runs,
            torchrun=partial(restarts, TORCHRUN, ranks, 3),
            warm=partial(restarts, HOLDFAST, ranks, 10, standbys=True),
            cold=partial(restarts, HOLDFAST, ranks, 3, "--ft-warm-start=off"),
            forked=partial(restarts, HOLDFAST, ranks, 10),
            peer=theirs and partial(restarts, theirs, ranks, 3),
        )
        every = {who: _all(found) for who, found in seen.items()}
        warm, torchrun = every["warm"], every["torchrun"]
        what = f"kill -9 to the first all-reduce on all {ranks} restarted ranks"
        counts = f"{len(warm)} restarts, torchrun {len(torchrun)}"
        rows += [
            Row(what, "s", warm, torchrun, NO_STORE_SHARING, ratio=Fraction(1, part), note=counts),
            *([Row(what, "s", warm, every["peer"], NVRX)] if theirs else []),
            Row(f"{what}, 99th percentile", "s", [percentile(warm, 99)], limit=3 * median(warm)),
            Row(f"{what}, no standby waiting", "s", every["forked"], torchrun, NO_STORE_SHARING),
            Row(f"{what}, cold start", "s", every["cold"], torchrun, NO_STORE_SHARING, ratio=1.0),
        ]
    return rows


def restart_nodes(runs: int, peer: bool) -> list[Row]:
    """Under several launchers; the rank is never one of the launcher that hosts the store.

    torchrun beside it, and Holdfast with as many ranks under one launcher.
    """
    shapes = ((2, 1), (2, 2), (16, 1))  # launchers, ranks of each
    settled = 1.0  # seconds before a kill: torchrun may restart once more by itself
    seen: dict[tuple[int, int], dict[str, list[list[float]]]] = {}
    for nodes, ranks in shapes:
        ours = partial(restarts, HOLDFAST, count=3, standbys=True, wait=settled)
        theirs = partial(restarts, TORCHRUN, ranks, 2, nodes=nodes, wait=settled) if peer else None
        seen[nodes, ranks] = by_turns(
            runs,
            torchrun=theirs,
            many=partial(ours, ranks=ranks, nodes=nodes),
            one=partial(ours, ranks=nodes * ranks),
        )
    rows = []
    every = {shape: {who: _all(each) for who, each in found.items()} for shape, found in seen.items()}
    for (nodes, ranks), one in every.items():
        what = f"kill -9 to the first all-reduce on all ranks of {nodes} launchers × {ranks}"
        note = ", ".join(f"{who}: {len(seconds)} restarts" for who, seconds in one.items())
        rows.append(Row(what, "s", one["many"], one["torchrun"], NO_STORE_SHARING, note=note))
        rows.append(Row(what, "s", one["many"], one["one"], f"Holdfast, 1 launcher × {nodes * ranks}"))
    growth = {
        who: [median(every[16, 1][who]) / median(every[2, 1][who])] if every[2, 1][who] else []
        for who in ("many", "torchrun")
    }
    what = "the same, 16 launchers over 2 with 1 rank each"
    return [*rows, Row(what, "×", growth["many"], growth["torchrun"], "torchrun")]


def imports(runs: int, peer: bool) -> list[Row]:
    """Imports that are done ahead: torch at the first start, and at a restart three frameworks of the script."""
    rows = [row for ranks, part in ((2, 0.65), (8, 0.4)) for row in _starts(ranks, part, runs)]
    needed = [f"torch=={version('torch')}", "transformers", "datasets", "lightning", "rich", "PyYAML"]
    python = beside("frameworks", needed, alone=True)
    wait = 15.0

    def ours() -> list[float]:
        with tempfile.TemporaryDirectory() as state:  # nothing is known of the script
            known = {"XDG_STATE_HOME": state, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
            launcher = [python, *HOLDFAST[1:]]
            return restarts(launcher, 2, 1, wait=wait, program="frameworks.py", variables=known)

    theirs = partial(restarts, [python, *TORCHRUN[1:]], 2, 1, program="frameworks.py")
    seen = by_turns(runs, torchrun=theirs, ours=ours)
    what = "kill -9 to the first all-reduce of 2 ranks that import transformers, datasets and Lightning"
    note = f"{wait:g} s after the first steps of a script's first job"
    mine, other = (_all(seen[who]) for who in ("ours", "torchrun"))
    return [*rows, Row(what, "s", mine, other, NO_STORE_SHARING, ratio=Fraction(1, 20), note=note)]


def _starts(ranks: int, part: float, runs: int) -> list[Row]:
    """Until all have imported torch: with nothing known of the script, and when its imports are known."""
    seen: dict[str, list[float]] = {"torchrun": [], "first job": [], "next job": []}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as state:
            for what, one in seen.items():
                launcher = TORCHRUN if what == "torchrun" else HOLDFAST
                line = command(launcher, ranks, "past_torch.py")
                stdout, _, began, _ = finish(line, variables={"XDG_STATE_HOME": state})
                times = [float(text) for text in stdout.split()]
                if len(times) != ranks:
                    raise RuntimeError(f"{len(times)} of {ranks} ranks have imported torch")
                one.append(max(times) - began)
    base = seen.pop("torchrun")
    what = f"start to past `import torch` on all {ranks} ranks"
    return [Row(f"{what}, {which}", "s", one, base, "torchrun", ratio=part) for which, one in seen.items()]


def restart_memory(runs: int, peer: bool) -> list[Row]:
    """Growth of one launcher's anonymous memory over 500 restarts, each with an incident report; one run.

    Two ranks without torch, of which one ends with 3 after a moment; the first sample is after 20 restarts. Each sample
    is printed.
    """
    rows = []
    for way, options in {"without warm start": ("--ft-warm-start=off",), "with warm start": ()}.items():
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, Job() as job:
            line = command(
                HOLDFAST, 2, "exits.py", options=(*options, "--max-restarts=520", f"--ft-run-dir={folder}")
            )
            process = job.start(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            found: list[float] = []
            for text in process.stdout or ():
                cycle = int(text.split()[1]) if text.startswith("cycle ") else 0
                if cycle >= 20 and (cycle - 20) % 50 == 0:
                    found.append(_sample(process.pid, cycle))
            process.wait()
            reports = len(list(Path(folder).glob("**/incidents/*")))
        what = f"growth of the launcher over 500 restarts with incident reports, {way}"
        note = f"{found[0]:.1f} MB after 20; {reports} reports"
        rows.append(Row(what, "MB", [found[-1] - found[0]], limit=1, note=note))
    return rows


def _sample(pid: int, cycle: int) -> float:
    """MB that a process holds now. Memory that it shares with its forks counts in full."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    memory = sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024 / 1e6
    process = psutil.Process(pid)
    counts = f"{process.num_fds()} descriptors, {process.num_threads()} threads"
    print(f"{cycle:4} restarts: {memory:8.2f} MB, {counts}", file=sys.stderr, flush=True)
    return memory
