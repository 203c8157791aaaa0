"""Jobs under any launcher: the command lines, the environment, and what holds all of a job's processes together.

A process is found by a mark in its environment, or below a launcher of the job, wherever it went otherwise.
Does not cover: a process that has replaced its environment and outlives its launcher; the end of the benchmark itself
by SIGKILL.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")
Self = TypeVar("Self", bound="Job")
PROGRAMS = Path(__file__).parent / "programs"
HOLDFAST = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
MARK = "HOLDFAST_BENCHMARK"
FREE_PORT = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
POLL = 0.02


def command(
    launcher: list[str], ranks: int, program: str, *args: str, options: Iterable[str] = ()
) -> list[str]:
    """The command line for `ranks` ranks of a program in benchmarks/programs."""
    return [*launcher, f"--nproc-per-node={ranks}", *options, str(PROGRAMS / program), *args]


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every launcher: no store sharing for torchrun, else it never restarts on gloo."""
    own = dict(variables or {})
    if "XDG_STATE_HOME" not in own:
        own["XDG_STATE_HOME"] = _state_folder()
    return {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **own}


@cache
def _state_folder() -> str:
    """For the journals of the jobs: a private folder, removed at the end."""
    folder = tempfile.mkdtemp(prefix="holdfast-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def free_port() -> int:
    """One that is not in use now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Job:
    """Owns the processes of one job: none outlives the block, whether it ends by itself or by an error."""

    def __init__(self, grace: float = 0.0) -> None:
        """`grace`: seconds that the launchers have after SIGTERM when the block ends; 0: all are killed at once."""
        self.launchers: list[subprocess.Popen[str]] = []
        self._mark, self._grace = uuid.uuid4().hex, grace

    def start(
        self, line: list[str], variables: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start one launcher; `options` are those of Popen."""
        marked = environment({MARK: self._mark, **(variables or {})})
        process = subprocess.Popen(line, env=marked, text=True, **options)
        self.launchers.append(process)
        return process

    def processes(self) -> list[psutil.Process]:
        """All that it started and that live."""
        mine = {process for each in self.launchers for process in below(each.pid)}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    mine.add(process)
        return [process for process in mine if _is_alive(process)]

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._grace:
            for launcher in self.launchers:
                launcher.terminate()
            until = time.monotonic() + self._grace
            for launcher in self.launchers:
                with suppress(subprocess.TimeoutExpired):
                    launcher.wait(max(0.0, until - time.monotonic()))
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            send(signal.SIGKILL, left)
            time.sleep(POLL)
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()


def below(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it; none if it is gone."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    """The signal to each of them that still lives."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def finish(
    line: list[str], timeout: float = 300.0, variables: Mapping[str, str] | None = None
) -> tuple[str, str, float, float]:
    """Run to the end: stdout, stderr, start and end (time.time())."""
    with Job(grace=60.0) as job:
        began = time.time()
        process = job.start(line, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stdout, stderr = process.communicate(timeout=timeout)
        return stdout, stderr, began, time.time()


def figures(line: list[str], key: str, variables: Mapping[str, str] | None = None) -> Any:
    """Run to the end: the last JSON object that begins with this key. Raises RuntimeError where there is none."""
    stdout, stderr, *_ = finish(line, variables=variables)
    found = [text for text in stdout.splitlines() if text.startswith(f'{{"{key}"')]
    if not found:
        raise RuntimeError(f"{' '.join(line)}: no figures:\n{stderr[-2000:]}")
    # A peer's log may continue the line: its ranks and monitors share a pipe.
    return json.JSONDecoder().raw_decode(found[-1])[0]


def by_turns(runs: int, **measure: Callable[[], T] | None) -> dict[str, list[T]]:
    """What each of these measures in `runs` rounds. They take turns, so that a slow minute hits all."""
    found: dict[str, list[T]] = {name: [] for name in measure}
    for _ in range(runs):
        for name, one in measure.items():
            if one is not None:
                found[name].append(one())
    return found
