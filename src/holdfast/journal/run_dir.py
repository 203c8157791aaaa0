"""The run directory: where a job's journal and incidents are kept after it ended, and which launcher writes there.

Owns the choice of the default place and the checks that make it safe to write there; docs/incidents-and-journal.md has
both. A directory that `prepare_run_dir` returned belongs to this user and no other user can plant anything in it (one
that it made, no other user can read). A filesystem that does not answer is an error after a while, not a launcher that
never starts.

Two jobs of one node name in one journal would each be read as the end of the other, so a launcher locks its node's
journal (`RunDirLock`). The lock is on an empty file next to it, as some network filesystems would keep readers out of a
locked one. No job waits for a lock, or stops because it gets none.

Does not cover: what happens to the directory after the checks. Another process of the same user may change it, and
the directories above it are the user's own business as long as only this user or root can rename what is in them.
Filesystems that cannot lock, or only among the processes of one machine: there two launchers of one node name write
into one journal; its lines stay whole.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ..fault_tolerance.errors import ConfigError
from ..in_time import TooLate, within
from .writer import file_name

T = TypeVar("T")

ANSWER = 10.0
"""Seconds that the filesystem may take to make and check a directory."""

LOCK_ANSWER = 2.0
"""Seconds that the filesystem may take for a lock; then the job continues without one."""

CONCURRENT = "also-"
"""How the sub-directory of a second launcher begins; its process id follows."""


class RunDirError(ConfigError):
    """The run directory cannot be used. The message is one line: which directory, why, what to do.

    `problem` is the message without what to do.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}. Give --ft-run-dir a folder of your own; one that does not exist is made."
        )
        self.problem = problem


def state_folder() -> str:
    """`$XDG_STATE_HOME/holdfast`, by default under `~/.local/state`. Made of nothing that is on disk.

    Raises `RunDirError` where neither the environment nor the system's list of users names a home folder.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG rule: a relative path is to be ignored
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            raise RunDirError(
                f"user {user_name(os.geteuid())} has no home folder (HOME) for the run directory"
            )
        state = os.path.join(home, ".local", "state")
    return os.path.join(state, "holdfast")


def fallback_folder() -> str:
    """Where run directories are that the state folder could not hold: `<temporary directory>/holdfast-<user id>`.

    Raises `RunDirError` where there is no temporary directory.
    """
    try:
        return os.path.join(tempfile.gettempdir(), f"holdfast-{os.geteuid()}")
    except OSError as error:
        raise RunDirError(f"there is no temporary directory for it: {error.strerror}") from None


def default_folders() -> list[str]:
    """Where runs without a chosen directory are: the state folder and its stand-in, if not another user's.

    Never raises; they need not be there.
    """
    found = []
    for named in (state_folder, fallback_folder):
        with suppress(RunDirError):
            place = named()
            if not os.path.lexists(place) or os.lstat(place).st_uid == os.geteuid():
                found.append(place)
    return found


def default_run_dir(run_id: str) -> str:
    """The folder of this run in the state folder. Raises `RunDirError` as `state_folder` does."""
    return os.path.join(state_folder(), _name(run_id))


def prepare_run_dir(path: str | None, run_id: str, warn: Callable[[str], None]) -> str:
    """Make sure that the run directory exists, is private and is ours; returns its absolute path.

    `path` is what the user chose, None for the default place; `warn` gets one line when that cannot be used and
    another one is. A directory that is there is used as it is, so several launchers, and a job and its successor, can
    share one. Raises `RunDirError`.

    Does not cover: a temporary directory that is cleaned while the job runs; its records are lost then.
    """
    if path is not None:
        if not path.strip():
            raise RunDirError("the run directory's name is empty")
        return make_private(os.path.abspath(path))
    try:
        place = default_run_dir(run_id)
        return _answered(lambda: _prepare_default(place), f"run directory {place}")
    except RunDirError as error:
        problem = error.problem
    try:
        place = _answered(lambda: _prepare_fallback(_name(run_id)), "the temporary directory")
    except RunDirError as error:
        raise RunDirError(f"{problem}; and {error.problem}") from None
    warn(
        f"{problem}; this run's journal is in {place}, where it may be cleaned away; --ft-run-dir names another place"
    )
    return place


def make_private(place: str) -> str:
    """Make this directory where it is missing, check it as `prepare_run_dir` does; returns it. Raises `RunDirError`."""
    return _answered(lambda: _prepare(place), f"run directory {place}")


class RunDirLock:
    """The directory to write to, `run_dir`, and the lock on this node's journal in it until `close` or the end."""

    def __init__(self, run_dir: str, descriptor: int | None) -> None:
        self.run_dir = run_dir
        self._descriptor = descriptor

    def close(self) -> None:
        """Release the lock; waits for at most a second."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError, TooLate):
                within(1.0, lambda: os.close(descriptor))


def lock_run_dir(run_dir: str, node: str, warn: Callable[[str], None]) -> RunDirLock:
    """Lock the journal of `node` in `run_dir`, or, where a running launcher has it, that in a sub-directory of our own.

    Raises nothing; `warn` gets one line when the directory is another one.

    Does not cover: a filesystem that cannot lock, which is used as it is.
    """
    try:
        return RunDirLock(run_dir, _locked(run_dir, node))
    except BlockingIOError:
        own = os.path.join(run_dir, f"{CONCURRENT}{os.getpid()}")
    try:
        make_private(own)
        found = RunDirLock(own, _locked(own, node))
    except (RunDirError, BlockingIOError):
        found = RunDirLock(run_dir, None)
    who = f"another launcher of node {node} is at work in {run_dir}"
    if found.run_dir == own:
        warn(f"{who} and holds its journal: that of this job is in {own}")
    else:
        warn(f"{who}, and {own} cannot be used: both jobs write into one journal, which will read wrong")
    return found


def _name(run_id: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)
    return name if name.strip(".") else "_" + name  # never the folder itself or the one above it


def _prepare_default(place: str) -> str:
    if problem := without_home(place):
        raise RunDirError(f"run directory {place} cannot be made: {problem}")
    return _prepare(place)


def without_home(place: str) -> str:
    """Why nothing is made in a home folder that is missing; else empty. To root everything can be made."""
    home = os.path.expanduser("~")
    is_missing = place.startswith(os.path.join(home, "")) and not os.path.isdir(home)
    return f"there is no home folder {home}" if is_missing else ""


def _prepare_fallback(name: str) -> str:
    """Both levels are checked: others could have planted either where everybody can write."""
    folder = fallback_folder()
    shared = os.path.dirname(folder)
    mode = os.stat(shared).st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise RunDirError(
            f"in {shared} others can replace what is ours (mode {stat.S_IMODE(mode):04o}, not sticky)"
        )
    _prepare(folder)
    return _prepare(os.path.join(folder, name))


def _prepare(place: str) -> str:
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        os.mkdir(place, 0o700)
    except FileExistsError:
        pass  # checked below
    except OSError as error:
        raise RunDirError(f"run directory {place} cannot be made: {error.strerror}") from None
    check(place)
    return place


def check(place: str) -> None:
    """Refuse what another user could have planted or could write to. Raises `RunDirError`, changes nothing."""
    try:
        found = os.lstat(place)
    except OSError as error:
        raise RunDirError(f"run directory {place} cannot be read: {error.strerror}") from None
    problem, target = None, "?"
    if stat.S_ISLNK(found.st_mode):
        with suppress(OSError):
            target = os.readlink(place)
        problem = f"is a symbolic link (to {target}), which could be turned to another place"
    elif not stat.S_ISDIR(found.st_mode):
        problem = "is not a directory"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {user_name(found.st_uid)}, not to {user_name(os.geteuid())}"
    elif found.st_mode & 0o022:
        problem = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o}); try chmod 700"
    elif not os.access(place, os.W_OK | os.X_OK):
        problem = "cannot be written to by its owner"
    if problem:
        raise RunDirError(f"run directory {place} {problem}")


def _answered(action: Callable[[], T], what: str) -> T:
    """Do not wait forever: on a network filesystem any call may hang."""
    try:
        return within(ANSWER, action)
    except TooLate:
        raise RunDirError(f"{what}: its filesystem has not answered for {ANSWER:g} s") from None
    except OSError as error:
        raise RunDirError(f"{what}: {error.strerror}") from None


def user_name(number: int) -> str:
    """Of a user id; the number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _locked(run_dir: str, node: str) -> int | None:
    """A descriptor that holds the lock; None where there is no locking. Raises `BlockingIOError` when it is taken."""
    try:
        return within(LOCK_ANSWER, lambda: lock_file(os.path.join(run_dir, f".{file_name(node)}.lock")))
    except BlockingIOError:
        raise
    except (OSError, TooLate):
        return None


def lock_file(path: str) -> int:
    """Make and lock this file, until the descriptor is closed. Raises `OSError`, `BlockingIOError` when it is taken."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        # Not fcntl's own locks: those of a process end when it closes any descriptor of the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
