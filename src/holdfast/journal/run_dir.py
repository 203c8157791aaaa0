"""The run directory: where a job's journal and incidents are kept after it ended.

Owns the choice of the default place and the checks that make it safe to write there. Where the default cannot be used
(no home folder, a read-only one) it is a private place in the temporary directory: the user did not ask for a
directory, so the want of one is no reason not to train. What always holds: a directory that `prepare_run_dir` returned
belongs to this user and nobody else can plant anything in it (one that it made, nobody else can read), and a
filesystem that does not answer is an error after a while, not a launcher that never starts.

Does not cover: what happens to the directory after the checks. Another process of the same user may change it, and
the directories above it are the user's own business as long as only this user or root can rename what is in them.
"""

from __future__ import annotations

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

T = TypeVar("T")

ANSWER = 10.0
"""Seconds that the filesystem may take to make and look at a directory."""


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
            raise RunDirError(f"user {_user(os.geteuid())} has no home folder (HOME) for the run directory")
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


def _name(run_id: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)
    return name if name.strip(".") else "_" + name  # never the folder itself or the one above it


def _prepare_default(place: str) -> str:
    home = os.path.expanduser("~")
    if place.startswith(os.path.join(home, "")) and not os.path.isdir(home):
        # To root everything can be made; a home like /nonexistent is not meant to be.
        raise RunDirError(f"run directory {place} cannot be made: there is no home folder {home}")
    return _prepare(place)


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
        pass  # looked at below
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
    problem = None
    if stat.S_ISLNK(found.st_mode):
        problem = f"is a symbolic link (to {_target(place)}), which could be turned to another place"
    elif not stat.S_ISDIR(found.st_mode):
        problem = "is not a directory"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {_user(found.st_uid)}, not to {_user(os.geteuid())}"
    elif found.st_mode & 0o022:
        problem = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o}); try chmod 700"
    elif not os.access(place, os.W_OK | os.X_OK):
        problem = "cannot be written to by its owner"
    if problem:
        raise RunDirError(f"run directory {place} {problem}")


def _answered(action: Callable[[], T], what: str) -> T:
    """Do not wait for ever: on a network filesystem any call may hang."""
    try:
        return within(ANSWER, action)
    except TooLate:
        raise RunDirError(f"{what}: its filesystem has not answered for {ANSWER:g} s") from None
    except OSError as error:
        raise RunDirError(f"{what}: {error.strerror}") from None


def _target(place: str) -> str:
    try:
        return os.readlink(place)
    except OSError:
        return "?"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
