"""Files that do not let themselves be read or written."""

from __future__ import annotations

import os
import threading

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point


def _fifo(path: str, rank: int) -> str:
    os.mkfifo(other := f"{path}.{rank}.copy")
    return other


@deed("dataset_file", "all_files", place="data")
def _(point: Point, path: str) -> str:
    return _fifo(path, point.rank)


@deed("storage", "all_storage", place="storage")
def _(point: Point, path: str) -> str:
    return _fifo(path, point.rank)


@deed("slow_storage", place="storage")
def _(point: Point, path: str) -> str:
    return str(point.folder / "slow")


@deed("saving_thread", place="storage")
def _(point: Point, path: str) -> str:
    def save(other: str) -> None:
        with open(other, "w") as file:
            file.write("weights")

    saver = threading.Thread(target=save, args=(_fifo(path, point.rank),), daemon=True)
    saver.start()
    saver.join()
    return ""


@deed("hung_filesystem", place="storage")
def _(point: Point, path: str) -> str:
    return str(point.folder / "mounted" / "part")
