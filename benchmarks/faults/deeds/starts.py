"""The start and the end of a rank."""

from __future__ import annotations

import atexit
import os
import threading
import time

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point


@deed("wrong_port")
def _(point: Point) -> None:
    os.environ["MASTER_PORT"] = "9"  # discard: nobody listens


@deed("wrong_world_size")
def _(point: Point) -> None:
    os.environ["WORLD_SIZE"] = str(point.world + 1)


@deed("thread_at_exit")
def _(point: Point) -> None:
    threading.Thread(target=time.sleep, args=(3600,), name="uploader").start()


@deed("exit_handler")
def _(point: Point) -> None:
    atexit.register(time.sleep, 3600)
