"""The monitor process: sleeps to the next deadline, ends when the launcher does, cleans up after it.

Started by the launcher with its settings as one JSON argument. It ignores every signal that is meant for the
training (schedulers signal all processes of a job at once): supervision ends when the launcher does, not before.
When the launcher is gone, however it went, the monitor ends the ranks and everything they started, then removes
the board directory.
Does not cover: a rank's descendant that cleared its environment, left the rank's session and the process tree.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
from dataclasses import dataclass

from ..processes import proc, sweep
from . import deafness, inquest
from .channel import Channel
from .execution import Executions
from .watch import Watch

IDLE = 0.1  # seconds without anything to do, in which imports disturb nobody
ENOUGH = 5  # looks after which they are made all the same


@dataclass(frozen=True)
class Settings:
    """What the launcher tells its monitor; seconds throughout."""

    directory: str
    epoch: int
    launcher_pid: int
    launcher_start: int
    channel: int
    check_interval: float
    termination: int
    patience: float
    early_detection: bool = False


def main() -> int:
    """Run until the launcher ends (then clean up) or another monitor is in charge (then just leave)."""
    deafness.ignore()
    settings = Settings(**json.loads(sys.argv[-1]))
    channel = Channel(socket.socket(fileno=settings.channel))
    executions = Executions(settings.termination, settings.patience)
    early_for = settings.launcher_pid if settings.early_detection else 0
    watch = Watch(
        settings.directory, settings.epoch, settings.check_interval, executions, channel.send, early_for
    )
    try:
        launcher = os.pidfd_open(settings.launcher_pid)
    except ProcessLookupError:
        launcher = -1
    if launcher >= 0 and proc.start_time(settings.launcher_pid) == settings.launcher_start:
        if not run(watch, channel, launcher):
            return 0
    if not watch.superseded:
        clean_up(watch, settings.directory)
    return 0


def run(watch: Watch, channel: Channel, launcher: int) -> bool:
    """Look and sleep; True when the launcher has ended and left the job to this monitor, False when superseded."""
    poller = select.poll()
    poller.register(launcher, select.POLLIN)
    poller.register(channel.fileno(), select.POLLIN)
    looks, prepared = 0, False
    while not watch.superseded:
        sleep = watch.look()
        looks += 1
        if not prepared and (sleep > IDLE or looks > ENOUGH):
            inquest.prepare()
            prepared = True
            continue
        ready = dict(poller.poll(int(sleep * 1000) + (sleep > 0)))
        if launcher in ready:
            # The launcher supersedes its monitor when it ends in good order: what is left then is not the monitor's.
            return not watch.superseded
        if channel.fileno() in ready and not list(channel.receive()):
            # The launcher closed its end: it is ending this monitor in good order, or is about to end itself.
            poller.unregister(channel.fileno())
    return False


def clean_up(watch: Watch, directory: str) -> None:
    """The launcher is gone: nothing of the job may stay behind.

    Environments are read last, when the ranks and all that is theirs by session or descent have ended and the
    directory is gone: such a read waits for a process that is busy with its own memory, if need be for ever.
    """
    ranks = watch.identities()
    spared = {os.getpid()}
    found: dict[
        int, int
    ] = {}  # kept: whoever was found below a rank is still to be ended when the rank is gone

    def theirs() -> dict[int, int]:
        present = {pid: start for pid, start in (ranks | found).items() if proc.start_time(pid) == start}
        left = sweep.in_sessions(ranks, spared)
        found.update(left | sweep.below({*present, *left}, spared))
        return {pid: start for pid, start in (present | found).items() if _runs(pid, start)}

    def marked() -> dict[int, int]:
        left = sweep.marked(os.fsencode(directory) + b"/", spared)
        return left | sweep.below({*left}, spared)

    sweep.end_all(theirs, grace=0.3, limit=5.0)
    watch.close()
    shutil.rmtree(directory, ignore_errors=True)
    sweep.end_all(marked, grace=0.3, limit=5.0)


def _runs(pid: int, start: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.start_time == start and not sweep.ends(found)


if __name__ == "__main__":
    sys.exit(main())
