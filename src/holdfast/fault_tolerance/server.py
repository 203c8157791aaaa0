"""`RankMonitorServer`: a monitor for one rank, for people whose ranks are started by something else than `ft_launcher`
(srun per rank, Ray, mpirun).

The path that the caller chooses names the rank's board; the rank finds it in FT_RANK_MONITOR_IPC_SOCKET. The board
itself lies in a private folder on tmpfs, and the path is a symlink to it. One monitor serves successive ranks: each
process that connects there is watched from then on, until it shuts its client down or ends.

Does not cover: a rank that hangs before it connects (nobody has said that it was started), restarting anything, and a
monitor that is killed, which nobody replaces. Those are the work of `ft_launcher`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

from . import environment
from .board import Board
from .errors import BoardUnavailable, HoldfastError
from .monitor.control import RUNNING, ControlPage
from .monitor.start import start
from .processes import proc
from .server_process import FOLDER, Settings, remove

if TYPE_CHECKING:
    from .config import FaultToleranceConfig

MAIN = "holdfast.fault_tolerance.server_process"
RESTART_PATIENCE = 5.0  # seconds between the termination signal and SIGKILL, as in the launcher


class RankMonitorServer:
    """Starts monitors. There are no instances."""

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
                patience=RESTART_PATIENCE,
                log_level=cfg.log_level,
                rank=os.environ.get("RANK", ""),
            )
            self._process = start(MAIN, settings, theirs.fileno())

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
        """Ask it to end; `join` waits for that. It ignores SIGTERM, which a scheduler may send to everybody."""
        with contextlib.suppress(OSError):
            self._channel.send(b"end")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for its end; `is_alive` tells whether it came. Removes what it left."""
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
        environment.limits(cfg, initial_set_by_user=False),
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
        pass  # nothing there, or no symlink: what follows says so
    try:
        os.symlink(os.path.join(folder, FOLDER, "0.board"), path)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be made to lead to a board: {error.strerror or error}") from error
