"""Healthy jobs, which must be left alone."""

from __future__ import annotations

import ctypes
import logging
import logging.handlers
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from functools import partial
from typing import Any

from benchmarks.faults.corpus import COUNTED, NO_RANK, SHELL, healthy
from benchmarks.faults.injection import InjectionPoint, background

_second = partial(healthy, held_out=True, program=2)


def _slow(seconds: float, what: str, *place: Any, **more: Any) -> None:
    """A job that is slow in one place, and healthy."""

    def _(*_: Any) -> None:
        time.sleep(seconds)

    _.__doc__ = what
    healthy(*place, **more)(_)


_slow(1.5, "A step takes 1.5 s of a limit of 3 s.", "slow_once", "step", "3")
_slow(1.8, "A checkpoint takes 1.8 s.", "long_checkpoint", "checkpoint", "2+2")
_slow(1.2, "The worker of the data takes 1.2 s.", "slow_data", "step", workers=1, at="data")
_slow(2, "A rank comes 2 s late to the others.", "slow_start", "init", "3")
_slow(1, "Two nodes, one of them 1 s late in validation.", "two_nodes", "validation", "2+2")
_slow(
    1.5, "No client, and a validation of 1.5 s.", "nothing_said", "validation", "2", COUNTED, blames=NO_RANK
)
_slow(1, "Below a shell, with a step of 1 s.", "shell", "step", "2", SHELL)
_slow(1.5, "A rank exports its model for 1.5 s at the end.", "long_end", "shutdown", "3")
_slow_2 = partial(_slow, held_out=True, program=2)
_slow_2(3, "One stage takes 3 s for a microbatch.", "slow_stage", "forward", "3")
_slow_2(3, "The thread that reads the data takes 3 s.", "late_reader", "step", "4", at="data")

# In the first program


@healthy("quiet", "step", "4", workers=2)
def _(point: InjectionPoint) -> None:
    """Nothing happens, with two workers for the data."""


@healthy("stopped_for_a_second", "collective", anywhere=True)
def _(point: InjectionPoint) -> None:
    """A rank is stopped for 1 s."""
    with subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)


@healthy("own_failure", "step")
def _(point: InjectionPoint) -> None:
    """An exception that the program handles itself."""
    with suppress(ValueError):
        raise ValueError("a sample cannot be read")


# In the second


@_second("refused_metrics", "forward", "2")
def _(point: InjectionPoint) -> None:
    """A metrics service refuses connections; the rank logs tracebacks and continues."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    for _ in range(3):
        try:
            socket.create_connection(address)
        except OSError:
            logging.exception("metrics: connection lost")


@_second("dead_thread", "backward", "4")
def _(point: InjectionPoint) -> None:
    """A thread that does not matter ends with an exception."""
    background(lambda: 1 // 0).join()


@_second("gil_for_a_while", "backward", "3")
def _(point: InjectionPoint) -> None:
    """Native code keeps the interpreter lock for 2.5 s."""
    ctypes.PyDLL(None).usleep(2_500_000)
