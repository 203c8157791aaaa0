"""Folders: whether this user could write there, tried with a file that is gone at once (and, where the
filesystem can, never has a name).

Does not cover: quotas that bind only larger files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile

from ...fault_tolerance.board.layout import BOARD_BYTES
from ...fault_tolerance.launcher.ranks.boards import TMPFS
from ...fault_tolerance.stop.page import SIZE as PAGE_BYTES
from ...journal.run_dir import RunDirError, check, fallback_folder, state_folder
from ..judgements.folders import Folder
from ..judgements.shared_memory import SharedMemory

CONTROL_BYTES = 64 * 1024  # the control page and the files beside it


def shared_memory(nproc: int, path: str = TMPFS) -> SharedMemory:
    """/dev/shm, with room for the boards of so many ranks taken and given back."""
    try:
        found = os.statvfs(path)
    except OSError as missing:
        return SharedMemory(path, error=_words(missing))
    wanted = CONTROL_BYTES + nproc * (BOARD_BYTES + PAGE_BYTES)
    free = found.f_bavail * found.f_frsize
    error = empty = why_not_written(path)
    if not empty:  # what there is no room for is not tried: the memory would be taken from whoever runs here
        error = why_not_written(path, wanted) if wanted <= free else os.strerror(errno.ENOSPC)
    return SharedMemory(
        path,
        size=found.f_blocks * found.f_frsize,
        free=free,
        filesystem=filesystem(path),
        error=error,
        full=bool(error) and not empty,
    )


def filesystem(path: str) -> str:
    """The type of the filesystem that the folder is on; empty where that cannot be told."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kind = ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for each in file:
            before, _, after = each.partition(" - ")
            if before.split()[2] == wanted:
                kind = after.split()[0]
    return kind


def why_not_written(path: str, size: int = 0, *, locked: bool = False) -> str:
    """Why a file of so many bytes cannot be made (and `locked`) in this folder; empty when it can."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            if size:
                os.posix_fallocate(file.fileno(), 0, size)
            if locked:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return _words(error)
    return ""


def state() -> Folder:
    """Where run directories are made that nobody chose."""
    try:
        return run_folder(state_folder(), home=os.path.expanduser("~"))
    except RunDirError as error:
        return Folder("the state folder", error.problem)


def fallback() -> Folder:
    """Where they are made where that cannot be used."""
    try:
        return run_folder(fallback_folder())
    except RunDirError as error:
        return Folder("the temporary folder", error.problem)


def run_folder(path: str, home: str = "") -> Folder:
    """A folder for journals as `journal.run_dir` would make or refuse it; nothing is made."""
    if home and path.startswith(os.path.join(home, "")) and not os.path.isdir(home):
        return Folder(path, f"there is no home folder {home}")
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    why = _refused(path) if there == path else ""
    why = why or why_not_written(there)
    if why and there != path:
        why = f"{there}: {why}"
    return Folder(path, why, 0 if why else _free(there))


def temporary() -> Folder:
    """Python's own choice of a temporary folder."""
    try:
        path = tempfile.gettempdir()
    except OSError as error:
        return Folder(os.environ.get("TMPDIR", "/tmp"), _words(error))
    why = why_not_written(path)
    return Folder(path, why, 0 if why else _free(path))


def _refused(path: str) -> str:
    try:
        check(path)
    except RunDirError as error:
        return error.problem.removeprefix(f"run directory {path} ")
    return ""


def _free(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _words(error: OSError) -> str:
    return error.strerror or str(error)
