"""Starting a program under Holdfast's launcher and under torchrun, in the same way."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
HOLDFAST = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def command(
    launcher: list[str], ranks: int, program: str, *args: str, options: tuple[str, ...] = ()
) -> list[str]:
    """The command line for `ranks` ranks of a program in benchmarks/programs."""
    return [*launcher, f"--nproc-per-node={ranks}", *options, str(PROGRAMS / program), *args]


def environment(**more: str) -> dict[str, str]:
    """The environment both get: no store sharing for torchrun, else it never restarts on gloo."""
    if "XDG_STATE_HOME" not in more:
        more["XDG_STATE_HOME"] = _state_folder()
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **more,
    }


@cache
def _state_folder() -> str:
    """For the journals of the jobs: a private folder, removed at the end."""
    folder = tempfile.mkdtemp(prefix="holdfast-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def running(line: list[str], **more: str) -> Iterator[subprocess.Popen[str]]:
    """Start it with its output in a pipe; end it when the block is left."""
    process = subprocess.Popen(
        line, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def finish(line: list[str], timeout: float = 120.0, **more: str) -> tuple[str, str, float, float]:
    """Run to the end: stdout, stderr, start and end (time.time())."""
    began = time.time()
    with running(line, **more) as process:  # which lets a launcher end its ranks, should the time be over
        stdout, stderr = process.communicate(timeout=timeout)
        return stdout, stderr, began, time.time()
