"""The boards of this node's ranks, cycle by cycle, in a private directory on tmpfs.

A launcher holds a lock on a file in its directory as long as it lives, however it ends; the next launcher of the same
user removes directories whose lock is free. It is a lock and not a process id, because containers may share /dev/shm
and number their processes separately.
What always holds: a board that cannot be allocated costs supervision of that rank, never the rank.
Does not cover: directories that were made by hand, or whose lock file was removed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from typing import Any

from ...board import Board, BoardUnavailable, Identity, Limits, Snapshot
from ...board.layout import BOARD_BYTES
from ...board.values import DIRECTORY_PREFIX, OWNER_FILE
from ...monitor.control import FILE as CONTROL
from ...monitor.control import ControlPage
from ...monitor.deadlines import Milestones
from ...processes import proc
from ...stop.page import SIZE as PAGE_BYTES
from ...stop.page import StopPages

logger = logging.getLogger("holdfast.launcher")
TMPFS = "/dev/shm"


def private_directory(ranks: int = 0) -> str:
    """A fresh 0700 directory with a control page and room for the boards of `ranks` ranks, on tmpfs where that is
    possible: a board must never wait for a disk.

    Raises BoardUnavailable, in one line, when there is no room for it anywhere.
    """
    problems = []
    for base in (TMPFS, None):
        try:
            made = tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=base)
        except OSError as error:
            problems.append(f"{base or 'no temporary folder'}: {error.strerror}")
            continue
        try:
            ControlPage.create(made).close()
            room = os.path.join(made, "room")  # removed again: something else may still fill the place
            with open(room, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, ranks) * (BOARD_BYTES + PAGE_BYTES))
            os.unlink(room)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            problems.append(f"{os.path.dirname(made)}: {error.strerror}")
            continue
        if problems:
            logger.warning("the boards are in %s: no room on tmpfs (%s)", made, problems[0])
        return made
    raise BoardUnavailable(f"no place for the boards of the ranks: {'; '.join(problems)}. Free some space")


def lock_directory(directory: str) -> int:
    """A descriptor that holds the directory until it is closed or this process ends. Raises OSError."""
    new = os.path.join(directory, f"{OWNER_FILE}.new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(new, os.path.join(directory, OWNER_FILE))  # from here on others find it locked
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_stale(base: str) -> list[str]:
    """Remove what dead launchers of this user left in `base`; returns the directories. Raises nothing."""
    removed = []
    with suppress(OSError):
        for entry in os.scandir(base):
            if entry.name.startswith(DIRECTORY_PREFIX) and is_stale(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(entry.path)
    return removed


def is_stale(directory: str) -> bool:
    """Whether it is a directory of this user whose launcher is dead. Raises nothing."""
    try:
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        descriptor = os.open(os.path.join(directory, OWNER_FILE), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


class CycleBoards:
    """Boards by local rank for the cycle that runs."""

    def __init__(self, directory: str, limits: Limits) -> None:
        self._directory = directory
        self._limits = limits
        self._folder = ""
        self._boards: dict[int, Board] = {}
        self._cycle = -1
        self.latest: tuple[float, dict[int, Snapshot]] = 0.0, {}
        """What :meth:`snapshots` has found last, and when (monotonic seconds); for any thread."""
        self.stops = StopPages()

    def open(self, cycle: int, count: int) -> ControlPage | None:
        """Make fresh boards; those of the cycle before are removed.

        Returns a new control page where the directory was removed meanwhile (a clean-up of /dev/shm at a logout, for
        example): the old page is still mapped, but no new monitor can find it.
        """
        self.close()
        self._cycle = cycle
        self._folder = os.path.join(self._directory, f"cycle-{cycle}")
        page = None
        try:
            page = self._restore()
            os.mkdir(self._folder, 0o700)
            for local_rank in range(count):
                self._boards[local_rank] = Board.create(self.path(local_rank), self._limits)
        except (BoardUnavailable, OSError) as error:
            without = count - len(self._boards)
            logger.warning("no board for %d of %d ranks in this cycle: %s", without, count, error)
        self.stops.open({local_rank: self.path(local_rank) for local_rank in self._boards})
        return page

    def _restore(self) -> ControlPage | None:
        if os.path.exists(os.path.join(self._directory, CONTROL)):
            return None
        with suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        found = os.lstat(self._directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{self._directory} belongs to another user now")
        page = ControlPage.create(self._directory)
        logger.warning("the ranks' boards in %s were removed while the job ran: made again", self._directory)
        return page

    def path(self, local_rank: int, kind: str = "board") -> str:
        """A file of this local rank: its `board` (the rank finds it in FT_RANK_MONITOR_IPC_SOCKET), the `error` that
        has its unhandled exception, or `stderr`, the last lines of a Python (with a dot and its pid at the end)."""
        return os.path.join(self._folder, f"{local_rank}.{kind}")

    @property
    def modules_path(self) -> str:
        """Where the first rank of this node leaves the list of the modules that it has imported."""
        return os.path.join(self._folder, "modules")

    def admit(self, local_rank: int, rank: int, pid: int) -> None:
        """The rank's process has started: its clock runs from here."""
        self.stops.bind(local_rank, rank)
        started = proc.start_time(pid)
        if local_rank in self._boards and started is not None:
            identity = Identity(pid, started, rank, local_rank, self._cycle, time.monotonic_ns())
            self._boards[local_rank].bind_process(identity)

    def snapshots(self) -> dict[int, Snapshot]:
        """The state of every board of this cycle now."""
        found = {local_rank: board.snapshot() for local_rank, board in self._boards.items()}
        self.latest = time.monotonic(), found
        return found

    def news(self, local_rank: int) -> list[dict[str, Any]]:
        """Everything that the monitor reports of a rank once in a cycle, and may not have reported yet."""
        board = self._boards.get(local_rank)
        return list(Milestones().poll(board.snapshot(), board.events)) if board else []

    def close(self) -> None:
        """Unmap and remove the boards of this cycle."""
        self.stops.close()
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""
