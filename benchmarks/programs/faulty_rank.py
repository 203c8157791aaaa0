"""A rank that is part of a fault. argv: "torchrun", "nvrx" or "holdfast"; what it does; a folder for what it leaves.

Tells nothing on its streams but what the fault needs; writes files named after what has happened and its rank.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rank_client import connected_client

who, what, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
rank = os.environ["RANK"]
client: Any = None


def left(event: str) -> None:
    """Record in the folder that the event happened."""
    (folder / f"{event}-{rank}").write_text(str(os.getpid()))


def connect() -> None:
    """To the monitor, where there is one."""
    global client
    client = connected_client(who)
    client.send_heartbeat()


def train(seconds: float) -> None:
    """Heartbeats ten times a second, of so much time awake."""
    for _ in range(int(10 * seconds)):
        client.send_heartbeat()
        time.sleep(0.1)


def exit_3() -> None:
    """The code that a program ends with."""
    sys.exit(3)


def raises() -> None:
    """An exception."""
    if rank == "1":
        raise ValueError("the answer is not 42")
    time.sleep(60)


def stays() -> None:
    """Trains until it is terminated."""
    connect()
    left("ready")
    train(60)


def trains() -> None:
    """Trains some seconds and leaves."""
    connect()
    left("ready")
    train(6)
    left("done")


def dies_once() -> None:
    """Rank 1 is killed in the first cycle; all finish in the next."""
    connect()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        train(60)
    train(1)
    left("done")


def child() -> None:
    """Leaves a child in a session of its own, as checkpoint writers are, and fails."""
    if rank == "1":
        subprocess.Popen(["sleep", "120"], start_new_session=True)
        sys.exit(1)
    time.sleep(60)


def deaf() -> None:
    """Rank 0 ignores that it is asked to end, when rank 1 has failed."""
    if rank == "0":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        left("ready")
        time.sleep(600)  # longer than anybody watches
    while not (folder / "ready-0").exists():
        time.sleep(0.05)
    sys.exit(1)


def saves() -> None:
    """Saves a checkpoint when it is asked to end, however often, and leaves with 0."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    connect()
    left("ready")
    while not told:
        train(0.1)
    train(0.5)
    left("saved")


def section() -> None:
    """A section that has no limit is opened and closed; then a hang in one that has a limit."""
    connect()
    client.start_section("surprise")
    client.end_section("surprise")
    client.start_section("step")
    left("ready")
    time.sleep(60)


globals()[what]()
