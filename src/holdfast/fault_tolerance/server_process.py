"""The process of a `RankMonitorServer`: the launcher's watch over one board, and its part in admitting ranks.

Who the rank is, the kernel says: the process that holds the lock on the board's file. A number that the rank itself
wrote is never signalled. Ends when told to, or when the process that started it ends, and then removes the board.

Does not cover: a rank in a pid namespace that this process does not see; it is not watched, and the log says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import socket
import sys
from dataclasses import dataclass
from typing import Any

from .board import Board, Identity
from .board.memory import holder
from .launcher import console
from .monitor import deafness, inquest
from .monitor.execution import Executions
from .monitor.watch import Watch
from .processes import proc

logger = logging.getLogger("holdfast.monitor")
FOLDER = "cycle-0"
LOOK_FOR_RANKS = (
    0.2  # seconds; a limit shorter than this is met this much late by a rank that has just connected
)


@dataclass(frozen=True)
class Settings:
    """What the starter tells its monitor; seconds throughout."""

    directory: str
    path: str
    starter_pid: int
    starter_start: int
    channel: int
    check_interval: float
    termination: int
    patience: float
    log_level: int
    rank: str


class Admissions:
    """Says on the board which process it belongs to, whenever another one has connected."""

    def __init__(self, path: str, rank: str) -> None:
        self._path = path
        self._rank = rank
        self._board = Board.open(path)
        self._connected_ns = 0

    def update(self) -> None:
        """Look who holds the board."""
        board = self._board.snapshot()
        if not board.connected or board.finished or board.connected_ns == self._connected_ns:
            return
        pid = holder(self._path)
        started = proc.start_time(pid) if pid else None
        if pid is None or started is None:
            return  # it has ended already, or connects just now
        rank = _number(pid, b"RANK=", self._rank)
        local_rank = _number(pid, b"LOCAL_RANK=", "")
        self._board.admit(Identity(pid, started, rank, local_rank, 0, board.connected_ns))
        self._connected_ns = board.connected_ns
        logger.debug("rank %d (pid %d) is watched", rank, pid)

    def close(self) -> None:
        """Unmap the board."""
        self._board.close()


def main() -> int:
    """Watch until told to end or until the starter has ended."""
    deafness.ignore()
    settings = Settings(**json.loads(sys.argv[-1]))
    console.set_up(settings.log_level)
    try:
        starter = os.pidfd_open(settings.starter_pid)
    except ProcessLookupError:
        starter = -1
    try:
        if starter >= 0 and proc.start_time(settings.starter_pid) == settings.starter_start:
            run(settings, starter)
    finally:
        remove(settings.directory, settings.path)
        console.flush()
    return 0


def run(settings: Settings, starter: int) -> None:
    """Look and sleep."""
    executions = Executions(settings.termination, settings.patience)
    watch = Watch(settings.directory, 1, settings.check_interval, executions, tell)
    admissions = Admissions(os.path.join(settings.directory, FOLDER, "0.board"), settings.rank)
    channel = socket.socket(fileno=settings.channel)
    inquest.prepare()
    poller = select.poll()
    poller.register(starter, select.POLLIN)
    poller.register(channel, select.POLLIN)
    while True:
        admissions.update()  # before every look: a verdict must be on the process that the board shows now
        sleep = min(watch.look(), LOOK_FOR_RANKS)
        ready = dict(poller.poll(int(sleep * 1000) + 1))
        if starter in ready:
            break
        if channel.fileno() in ready:
            if channel.recv(16):
                break
            poller.unregister(channel)  # the starter dropped its handle; its end is what counts
    watch.close()
    admissions.close()


def tell(message: dict[str, Any]) -> None:
    """What the watch has to say, for the log: there is no launcher to hear it."""
    event = message["event"]
    if evidence := message.pop("evidence", ""):  # there is no run directory here for a report
        with contextlib.suppress(OSError):
            os.unlink(evidence)
    if event == "verdict":
        for line in console.hang(socket.gethostname(), message):
            logger.error("%s", line)
    elif event == "went_on":
        logger.warning("%s", console.went_on(socket.gethostname(), message))
    elif event == "escalated":
        logger.error("rank %s (pid %s) is still there: SIGKILL sent", message["rank"], message["pid"])
    elif event == "unreadable":
        logger.error("%s", message["text"])
    elif event == "request":
        logger.warning(
            "rank %s asks to %s (%s): no ft_launcher here that could do it",
            message["rank"],
            message["action"].replace("_", " "),
            message["description"],
        )


def remove(folder: str, path: str) -> None:
    """Remove a monitor's board, and the path if that still leads there. Safe to call twice, by either side."""
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith(folder + os.sep):
            os.unlink(path)
    shutil.rmtree(folder, ignore_errors=True)


def _number(pid: int, name: bytes, default: str) -> int:
    """A number from the environment that a process was started with: for people to read, never to decide by."""
    text = default
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for variable in file.read().split(b"\0"):
            if variable.startswith(name):
                text = variable[len(name) :].decode(errors="replace")
    try:
        return int(text)
    except ValueError:
        return -1
