"""`RankMonitorServer`: a monitor for one rank, for ranks that are not started by `ft_launcher` (srun per rank, Ray,
mpirun).

The path that the caller chooses names the rank's board; the rank finds it in FT_RANK_MONITOR_IPC_SOCKET. The board
itself lies in a private folder on tmpfs, and the path is a symlink to it. One monitor serves successive ranks: each
process that connects is watched from then on, until it shuts its client down or ends. The kernel reports which process
that is: the one with the lock on the board's file. A number that the rank itself wrote is never signalled.

Does not cover: a rank that hangs before it connects, restarting anything, and a monitor that is killed, which is not
replaced; those are the work of `ft_launcher`. A rank in a pid namespace that the monitor does not see: it is not
watched.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import environment
from .board import Board, Identity
from .board.mapped import MappedFile
from .errors import BoardUnavailable, HoldfastError
from .monitor.control import RUNNING, ControlPage
from .monitor.hang_handler import import_capture
from .monitor.main import ignore_signals, open_process, start
from .monitor.watch import Terminator, Watch
from .processes import proc
from .timeouts.effective_timeouts import configured_timeouts

if TYPE_CHECKING:
    from .config import FaultToleranceConfig

logger = logging.getLogger("holdfast.monitor")
MODULE = "holdfast.fault_tolerance.server"
FOLDER = "cycle-0"
GRACE = 5.0  # seconds between the termination signal and SIGKILL, as in the launcher
RANK_POLL = 0.2  # seconds; a limit shorter than this is met this much late by a rank that has just connected


class RankMonitorServer:
    """Starts monitors. It has no instances."""

    @staticmethod
    def run_in_subprocess(
        cfg: FaultToleranceConfig,
        ipc_socket_path: str,
        is_restarter_logger: bool = False,
        mp_ctx: Any = None,
    ) -> RankMonitorProcess:
        """Start a monitor for the rank whose FT_RANK_MONITOR_IPC_SOCKET is `ipc_socket_path`; it may connect at once.

        The monitor ends with `terminate()`, or with the process that called this. It ignores the signals that
        schedulers send to all processes of a job. `is_restarter_logger` and `mp_ctx` are accepted for compatibility:
        the monitor is a process of its own, without torch, however the caller's other processes are started.

        Raises BoardUnavailable if there is no shared memory for a board, HoldfastError if something of another
        user's, or something that is no left-over of ours, is at the path.
        """
        del is_restarter_logger, mp_ctx
        folder = _private_folder(ipc_socket_path)
        try:
            _furnish(folder, cfg)
            _point(ipc_socket_path, folder)
            return RankMonitorProcess(folder, ipc_socket_path, cfg)
        except BaseException:
            remove(folder, ipc_socket_path)
            raise


class RankMonitorLogger(logging.Logger):
    """Writes lines to stderr that name the rank that is connected. For other packages; Holdfast does not use it."""

    def __init__(
        self, name: str = "RankMonServer", level: int = logging.INFO, is_restarter_logger: bool = False
    ) -> None:
        """No rank is connected yet.

        Args:
            name: shown in each line.
            level: the lowest level that is shown.
            is_restarter_logger: accepted for compatibility, without effect.
        """
        super().__init__(name, level)
        del is_restarter_logger
        self._console = logging.StreamHandler()
        self.addHandler(self._console)
        self.set_connected_rank(None)

    def set_connected_rank(self, rank: int | None) -> None:
        """Name this rank in all following lines; None names no rank."""
        place = "" if rank is None else f" rank {rank}"
        layout = f"%(asctime)s [%(levelname)s] [%(name)s]{place}: %(message)s"
        self._console.setFormatter(logging.Formatter(layout))


class RankMonitorProcess:
    """A running monitor."""

    def __init__(self, folder: str, path: str, cfg: FaultToleranceConfig) -> None:
        self._folder, self._path = folder, path
        ours, theirs = socket.socketpair()
        self._channel = ours
        with theirs:
            settings = Settings(
                directory=folder,
                path=path,
                starter_pid=os.getpid(),
                starter_start=proc.start_time(os.getpid()) or 0,
                channel=theirs.fileno(),
                check_interval=cfg.workload_check_interval,
                termination=int(cfg.rank_termination_signal),
                grace=GRACE,
                log_level=cfg.log_level,
                rank=os.environ.get("RANK", ""),
                warm_up=cfg.num_warmup_iterations,
            )
            self._process = start(MODULE, settings, theirs.fileno())

    @property
    def pid(self) -> int:
        """The monitor's process."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """None while it runs; -n when signal n ended it."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def terminate(self) -> None:
        """Ask it to end; `join` waits for that. It ignores SIGTERM, which a scheduler may send to all processes."""
        with contextlib.suppress(OSError):
            self._channel.send(b"end")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for its end; `is_alive` reports whether it came. Removes what it left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
            self._channel.close()
            remove(self._folder, self._path)


def _private_folder(path: str) -> str:
    """A fresh folder on tmpfs, where no board write ever waits for a disk; 0700, as mkdtemp makes it."""
    tmpfs = "/dev/shm"
    try:
        return tempfile.mkdtemp(prefix="holdfast-", dir=tmpfs if os.access(tmpfs, os.W_OK) else None)
    except OSError as error:
        raise BoardUnavailable(f"no place for the board of {path}: {error.strerror or error}") from error


def _furnish(folder: str, cfg: FaultToleranceConfig) -> None:
    """Everything that the monitor and the rank expect in the folder."""
    board = Board.create(
        os.path.join(folder, FOLDER, "0.board"),
        configured_timeouts(cfg, initial_set_by_user=False),
        successive=True,
    )
    board.close()
    with open(board.path + environment.CONFIG_SUFFIX, "w", encoding="utf-8") as file:
        json.dump(cfg.to_dict(), file)
    control = ControlPage.create(folder)
    control.epoch = 1
    control.enter(RUNNING, 0)
    control.close()


def _point(path: str, folder: str) -> None:
    """Make `path` lead to the board. The left-over of a monitor of this user's that was killed is replaced."""
    try:
        if os.lstat(path).st_uid == os.getuid() and os.path.basename(os.readlink(path)) == "0.board":
            os.unlink(path)
    except OSError:
        pass  # nothing there, or no symlink: the next call raises then
    try:
        os.symlink(os.path.join(folder, FOLDER, "0.board"), path)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be made to lead to a board: {error.strerror or error}") from error


@dataclass(frozen=True)
class Settings:
    """The monitor's argument; seconds throughout."""

    directory: str
    path: str
    starter_pid: int
    starter_start: int
    channel: int
    check_interval: float
    termination: int
    grace: float
    log_level: int
    rank: str
    warm_up: int  # steps


class RankBinding:
    """Binds the board to the process that has connected, whenever another one has."""

    def __init__(self, path: str, rank: str) -> None:
        self._path = path
        self._rank = rank
        self._board = Board(path)
        self._connected_ns = 0

    def update(self) -> None:
        """Bind the board to the process that has its lock."""
        board = self._board.snapshot()
        if not board.connected or board.finished or board.connected_ns == self._connected_ns:
            return
        with MappedFile(self._path) as file:
            pid = file.lock_owner()
        started = proc.start_time(pid) if pid else None
        if pid is None or started is None:
            return  # it has ended already, or connects just now
        rank = _number(pid, b"RANK=", self._rank)
        local_rank = _number(pid, b"LOCAL_RANK=", "")
        self._board.bind_process(Identity(pid, started, rank, local_rank, 0, board.connected_ns))
        self._connected_ns = board.connected_ns
        logger.debug("rank %d (pid %d) is watched", rank, pid)

    def close(self) -> None:
        """Unmap the board."""
        self._board.close()


def main() -> int:
    """The monitor: watch until asked to end or until the starter has ended, then remove the board."""
    from .launcher import console

    ignore_signals()
    settings = Settings(**json.loads(sys.argv[-1]))
    console.set_up(settings.log_level)
    try:
        starter = open_process(settings.starter_pid, settings.starter_start)
        if starter is not None:
            run(settings, starter)
    finally:
        remove(settings.directory, settings.path)
        console.flush()
    return 0


def run(settings: Settings, starter: int) -> None:
    """Scan and sleep."""
    terminator = Terminator(settings.termination, settings.grace)
    watch = Watch(
        settings.directory, 1, settings.check_interval, terminator, report, warm_up=settings.warm_up
    )
    binding = RankBinding(os.path.join(settings.directory, FOLDER, "0.board"), settings.rank)
    channel = socket.socket(fileno=settings.channel)
    import_capture()
    poller = select.poll()
    poller.register(starter, select.POLLIN)
    poller.register(channel, select.POLLIN)
    while True:
        binding.update()  # before every scan: a verdict must be on the process that the board shows now
        sleep = min(watch.scan(), RANK_POLL)
        ready = dict(poller.poll(int(sleep * 1000) + 1))
        if starter in ready:
            break
        if channel.fileno() in ready:
            if channel.recv(16):
                break
            poller.unregister(channel)  # the starter dropped its handle; its end is what counts
    watch.close()
    binding.close()


def report(message: dict[str, Any]) -> None:
    """A message of the watch, into the log: no launcher receives it."""
    from .launcher import console

    event = message["event"]
    if evidence := message.pop("evidence", ""):  # there is no run directory here for a report
        with contextlib.suppress(OSError):
            os.unlink(evidence)
    if event == "verdict":
        for line in console.hang(socket.gethostname(), message):
            logger.error("%s", line)
    elif event == "recovered":
        logger.warning("%s", console.recovered(socket.gethostname(), message))
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
