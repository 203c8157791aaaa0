"""The monitor process: how it is started, and its loop, which sleeps to the next deadline and ends with the launcher.

Started by the launcher, or for a `RankMonitorServer`, with its settings as one JSON argument. Nothing that a user
installs or sets slows it down or breaks it: Python runs isolated and without site, a module next to this package
cannot replace one of the standard library, and of the environment it gets only what the interpreter may need (no
LD_PRELOAD, no malloc or profiler switches).

Schedulers signal every process of a job at once. A monitor ignores those signals and has a session of its own;
because its interpreter takes a while to start, it is spawned with them blocked. Supervision ends when the launcher
does, not before. When the launcher is gone, however it ended, the monitor ends the ranks and everything they started,
then removes the board directory.

Does not cover: SIGKILL and SIGSTOP; a monitor that gets one of these is replaced. An LD_LIBRARY_PATH that leads to a
broken library; some interpreters are not found without theirs. A rank's descendant that cleared its environment, left
the rank's session and the process tree. A rank that was just being started when the launcher was killed, and gets its
environment more than a second later.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..processes import kill, proc
from .control import Channel, Settings
from .hang_handler import import_capture
from .watch import Watch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PACKAGE_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
KEPT = (
    *(
        "LD_LIBRARY_PATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "TMPDIR",
    ),  # for loading, text, the time of log lines
    *map(os.fsdecode, proc.BATCH_JOB),
)
OURS = "HOLDFAST_"  # a variable of ours that marks all processes of a job marks the monitor as well
SHIELDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
    signal.SIGPIPE,
)
IDLE = 0.1  # seconds of sleep in which imports delay nothing
STARTING = 1.0  # seconds after which a process that was just being started shows its environment
ENOUGH = 5  # scans after which they are made in any case


def command(module: str, argument: str) -> list[str]:
    """The command line of a process that runs `main` of this module of ours, which finds its argument in sys.argv."""
    code = f"import sys; sys.path.append({PACKAGE_ROOT!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, argument]


def start(module: str, settings: DataclassInstance, channel: int) -> subprocess.Popen[bytes]:
    """Start a monitor whose `main` is in `module`; it inherits the descriptor `channel`. OSError if that fails."""
    with spawn_shielded():
        return subprocess.Popen(
            command(module, json.dumps(asdict(settings))),
            env={name: value for name, value in os.environ.items() if name in KEPT or name.startswith(OURS)},
            pass_fds=[channel],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


@contextmanager
def spawn_shielded() -> Iterator[None]:
    """A process that this thread starts inside does not get these signals; this thread gets them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """From now on this process ignores them; those that came since it was spawned are dropped."""
    for number in SHIELDED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SHIELDED)


def main() -> int:
    """Run until the launcher ends (then clean up) or another monitor is in charge (then just leave)."""
    ignore_signals()
    settings = Settings(**json.loads(sys.argv[-1]))
    channel = Channel(socket.socket(fileno=settings.channel))
    watch = Watch(settings, channel.send)
    launcher = kill.open_pidfd(settings.launcher_pid, settings.launcher_start)
    if launcher is not None and not run(watch, channel, launcher):
        return 0
    if not watch.is_superseded:
        clean_up(watch, settings.directory)
    return 0


def run(watch: Watch, channel: Channel, launcher: int) -> bool:
    """Scan and sleep; True when the launcher has ended and left the job to this monitor, False when superseded."""
    poller = select.poll()
    poller.register(launcher, select.POLLIN)
    poller.register(channel.fileno(), select.POLLIN)
    scans, prepared = 0, False
    while not watch.is_superseded:
        sleep = watch.scan()
        scans += 1
        if not prepared and (sleep > IDLE or scans > ENOUGH):
            import_capture()
            prepared = True
            continue
        ready = dict(poller.poll(int(sleep * 1000) + (sleep > 0)))
        if launcher in ready:
            # The launcher supersedes its monitor when it ends in good order: what is left then is not the monitor's.
            return not watch.is_superseded
        if channel.fileno() in ready and not list(channel.receive()):
            # The launcher closed its end: it is ending this monitor in good order, or is about to end itself.
            poller.unregister(channel.fileno())
    return False


def clean_up(watch: Watch, directory: str) -> None:
    """The launcher is gone: nothing of the job may stay behind.

    Environments are read last, when the ranks and all that is theirs by session or descent have ended and the
    directory is gone: such a read waits for a process that is busy with its own memory, if need be forever. torch's
    shared-memory managers come last of all, because each ends some time after its users.
    """
    ranks = watch.identities()
    spared = {os.getpid()}
    found: dict[int, int] = {}  # a process found below a rank is still to be ended when the rank is gone

    def theirs() -> dict[int, int]:
        present = {pid: start for pid, start in (ranks | found).items() if proc.start_time(pid) == start}
        left = kill.in_sessions(ranks, spared)
        found.update(left | kill.below({*present, *left}, spared))
        return {pid: start for pid, start in (present | found).items() if proc.is_running(pid, start)}

    def marked() -> dict[int, int]:
        left = kill.marked(os.fsencode(directory) + b"/", spared)
        return left | kill.below({*left}, spared)

    def without_managers(find: Callable[[], dict[int, int]]) -> dict[int, int]:
        left = find()
        return {pid: left[pid] for pid in left.keys() - kill.managers(left)}

    kill.end_all(lambda: without_managers(theirs), grace=0.3, limit=5.0)
    watch.close()
    shutil.rmtree(directory, ignore_errors=True)
    kill.end_all(lambda: without_managers(marked), grace=0.3, limit=5.0)
    time.sleep(STARTING)
    kill.end_all(lambda: theirs() | marked(), grace=0.3, limit=5.0 + kill.HELPERS)


if __name__ == "__main__":
    sys.exit(main())
