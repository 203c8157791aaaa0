"""One of two ranks that agree over side groups, or do not. Arguments: the rank, a folder. Says what came out."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from holdfast.fault_tolerance.timeouts.kept_timeouts import KeptTimeouts, learn, wanted_by_all
from holdfast.fault_tolerance.timeouts.learned_timeouts import HEARTBEAT
from holdfast.prefixed_log import Prefixed
from holdfast.side_group import SideGroup

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])

SHORT = 1.0
"""Seconds that a group waits in an operation."""


def meet(name: str) -> None:
    """Both ranks have come this far, or rank 0 need not wait any longer."""
    (FOLDER / f"{name}-{RANK}").touch()
    while not (FOLDER / f"{name}-{1 - RANK}").exists():
        time.sleep(0.002)


def the_store() -> dist.TCPStore:
    """As launchers have it; other stores wait otherwise."""
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (FOLDER / "port").write_text(str(store.port))
    meet("store")
    if RANK == 1:
        store = dist.TCPStore("127.0.0.1", int((FOLDER / "port").read_text()), wait_for_workers=False)
    return store


def as_in_setup(log: Prefixed) -> str:
    """Rank 0 comes later than an operation's limit: to the making of the group, and to a callback's start."""
    if RANK == 0:
        (FOLDER / "state.json").write_text("limits")
        time.sleep(2 * SHORT)
    group = SideGroup(SHORT)
    if RANK == 0:
        time.sleep(2 * SHORT)
    text = KeptTimeouts(FOLDER / "state.json", HEARTBEAT, group, log).text
    group.close()
    return text


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    log = Prefixed(logging.getLogger(), RANK)
    dist.init_process_group("gloo", store=the_store(), rank=RANK, world_size=2)
    told: dict[str, object] = {}
    group = SideGroup()
    told["text"] = group.broadcast_text("rank 0 says é" if RANK == 0 else "rank 1")
    told["nothing"] = group.broadcast_text("" if RANK == 0 else "rank 1")
    told["agreed"] = wanted_by_all(group, [True, RANK == 0, False], log, patience=30)
    lonely, left = SideGroup(), SideGroup()
    told["late"] = as_in_setup(log)

    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    if RANK == 0:
        before = time.monotonic()
        told["alone"] = wanted_by_all(lonely, [True], log, patience=2, meanwhile=beat)
        told["again"] = wanted_by_all(lonely, [True], log, patience=30)
        told["seconds"], told["beats"] = time.monotonic() - before, beats
        meet("gave up")
        meet("left")
        before = time.monotonic()
        told["left"] = wanted_by_all(left, [True], log, patience=60)
        told["calculated"] = learn(lambda: bool(left.broadcast([1.0])), log)
        told["seconds after leaving"] = time.monotonic() - before
        meet("end")
    else:
        meet("gave up")
        left.close()  # as a rank does that failed
        meet("left")
        meet("end")
    for each in (group, lonely, left):
        each.close()
    dist.destroy_process_group()
    os.write(1, (json.dumps(told) + "\n").encode())


if __name__ == "__main__":
    main()
