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
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import environment
from .board import Board, Identity
from .board.mapped import MappedFile
from .errors import HoldfastError
from .launcher.ranks.boards import lock_directory, private_directory, remove_stale
from .monitor.control import RUNNING, SCAN, Channel, ControlPage, Settings
from .monitor.main import ignore_signals, run, start
from .monitor.watch import Watch
from .processes import proc
from .processes.kill import open_pidfd
from .timeouts.effective_timeouts import configured_timeouts

if TYPE_CHECKING:
    from .config import FaultToleranceConfig

logger = logging.getLogger("holdfast.monitor")
MODULE = "holdfast.fault_tolerance.server"
BOARD = os.path.join("cycle-0", "0.board")
EPOCH = 1  # of the one monitor on its control page
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
        folder = private_directory()
        remove_stale(os.path.dirname(folder))
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
        self._control = ControlPage(folder)  # stays mapped: a cleaner may empty /dev/shm
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours)
        with theirs:
            settings = ServerSettings(
                directory=folder,
                epoch=EPOCH,
                launcher_pid=os.getpid(),
                launcher_start=proc.start_time(os.getpid()) or 0,
                channel=theirs.fileno(),
                check_interval=min(cfg.workload_check_interval, RANK_POLL),
                termination=int(cfg.rank_termination_signal),
                grace=GRACE,
                warm_up=cfg.num_warmup_iterations,
                path=path,
                rank=os.environ.get("RANK", ""),
                log_level=cfg.log_level,
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
        if self.is_alive():
            self._control.epoch = EPOCH + 1
            self._channel.send(SCAN)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for its end; `is_alive` reports whether it came. Removes what it left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
            self._channel.close()
            self._control.close()
            remove(self._folder, self._path)


def _furnish(folder: str, cfg: FaultToleranceConfig) -> None:
    """Everything that the monitor and the rank expect in the folder."""
    board = Board.create(
        os.path.join(folder, BOARD),
        configured_timeouts(cfg, initial_set_by_user=False),
        successive=True,
    )
    board.close()
    with open(board.path + environment.CONFIG_SUFFIX, "w", encoding="utf-8") as file:
        json.dump(cfg.to_dict(), file)
    control = ControlPage(folder)
    control.epoch = EPOCH
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
        os.symlink(os.path.join(folder, BOARD), path)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be made to lead to a board: {error.strerror or error}") from error


@dataclass(frozen=True)
class ServerSettings(Settings):
    """The monitor's argument."""

    path: str = ""
    rank: str = ""
    log_level: int = logging.INFO


class ServerWatch(Watch):
    """Before each scan it binds the board to the process that has connected, whenever another one has."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings, report)
        self._rank = settings.rank
        self._board = Board(os.path.join(settings.directory, BOARD))
        self._file = MappedFile(self._board.path)  # stays open: a cleaner may empty /dev/shm
        self._connected_ns = 0

    def scan(self) -> float:
        """As a `Watch` does: a verdict must be on the process that the board shows now."""
        self._bind()
        return super().scan()

    def _bind(self) -> None:
        board = self._board.snapshot()
        if not board.connected or board.finished or board.connected_ns == self._connected_ns:
            return
        pid = self._file.lock_owner()
        started = proc.start_time(pid) if pid else None
        if pid is None or started is None:
            return  # it has ended already, or connects just now
        rank = _number(pid, b"RANK=", self._rank)
        local_rank = _number(pid, b"LOCAL_RANK=", "")
        self._board.bind_process(Identity(pid, started, rank, local_rank, 0, board.connected_ns))
        self._connected_ns = board.connected_ns
        logger.debug("rank %d (pid %d) is watched", rank, pid)


def main() -> int:
    """The monitor: watch until asked to end or until the starter has ended, then remove the board."""
    from .launcher import console

    ignore_signals()
    settings = ServerSettings(**json.loads(sys.argv[-1]))
    console.set_up(settings.log_level)
    try:
        with contextlib.suppress(OSError):
            lock_directory(settings.directory)  # as long as this process lives; see `remove_stale`
        starter = open_pidfd(settings.launcher_pid, settings.launcher_start)
        if starter is not None:
            run(ServerWatch(settings), Channel(socket.socket(fileno=settings.channel)), starter)
    finally:
        remove(settings.directory, settings.path)
        console.flush()
    return 0


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
            "rank %s requests %s (%s): ignored, because no ft_launcher started it",
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
