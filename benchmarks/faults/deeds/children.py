"""Children of the rank, and workers of its data loader."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point

PTRACE_ATTACH, PR_SET_PTRACER = 16, 0x59616D61
"""Sources: ptrace(2), prctl(2)."""


@deed("child")
def _(point: Point) -> None:
    subprocess.run(["sleep", "3600"], check=True)


@deed("wait_for_child")
def _(point: Point) -> None:
    if (pid := os.fork()) == 0:
        time.sleep(3600)
        os._exit(0)
    os.waitpid(pid, 0)


@deed("output_of_child")
def _(point: Point) -> None:
    with subprocess.Popen(["sleep", "3600"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()


@deed("question")
def _(point: Point) -> None:
    reader, _ = os.pipe()
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0)
    input("overwrite the log directory? [y/n] ")


@deed("uninterruptible")
def _(point: Point) -> None:
    # The child opens it before its exec, and shares the parent's memory until then: the kernel keeps the parent in D.
    # By way of ctypes, as Python's own posix_spawn would keep the GIL.
    path = str(point.folder / f"program-{point.rank}")
    os.mkfifo(path)
    libc = ctypes.CDLL(None)
    actions = ctypes.create_string_buffer(256)  # larger than posix_spawn_file_actions_t anywhere
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, path.encode(), os.O_RDONLY, 0)
    arguments = (ctypes.c_char_p * 2)(b"true", None)
    variables = (ctypes.c_char_p * (len(os.environb) + 1))(
        *(k + b"=" + v for k, v in os.environb.items()), None
    )
    libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, arguments, variables)


@deed("traced")
def _(point: Point) -> None:
    libc = ctypes.CDLL(None)
    if os.fork() == 0:
        traced = os.getppid()
        libc.ptrace(PTRACE_ATTACH, traced, 0, 0)
        while True:  # as debuggers do: the end of what is traced is the tracer's to hear of first
            os.waitpid(traced, 0)
    libc.prctl(PR_SET_PTRACER, -1, 0, 0, 0)
    time.sleep(30)


@deed("worker_killed", place="data")
def _(point: Point, path: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@deed("worker_stopped", place="data")
def _(point: Point, path: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@deed("worker_sleeps", "dataset_sleeps", place="data")
def _(point: Point, path: str) -> None:
    time.sleep(3600)


@deed("saving_child", place="storage")
def _(point: Point, path: str) -> str:
    fifo = f"{path}.fifo"
    os.mkfifo(fifo)
    if (pid := os.fork()) == 0:
        with open(fifo, "w"):
            os._exit(0)
    os.waitpid(pid, 0)
    return ""
