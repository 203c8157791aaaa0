"""The run directory: where a job's journal and incidents are kept after it ended.

Owns the choice of the default place and the checks that make it safe to write there. What always holds: a directory
that `prepare_run_dir` returned belongs to this user and nobody else can plant anything in it (one that it made, nobody
else can read), and a filesystem that does not answer is an error after a while, not a launcher that never starts.

Does not cover: what happens to the directory after the checks. Another process of the same user may change it, and
the directories above it are the user's own business as long as only this user or root can rename what is in them.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import threading
from collections.abc import Callable

from ..fault_tolerance.errors import ConfigError

ANSWER = 10.0
"""Seconds that the filesystem may take to make and look at a directory."""


class RunDirError(ConfigError):
    """The run directory cannot be used. The message is one line: which directory, why, what to do."""


def default_run_dir(run_id: str) -> str:
    """`$XDG_STATE_HOME/holdfast/<run id>`, by default under `~/.local/state`. Made of nothing that is on disk."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG rule: a relative path is to be ignored
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)
    if not name.strip("."):
        name = "_" + name  # never the folder itself or the one above it
    return os.path.join(state, "holdfast", name)


def prepare_run_dir(path: str | None, run_id: str) -> str:
    """Make sure that the run directory exists, is private and is ours; returns its absolute path.

    `path` is what the user chose, None for the default place. A directory that is there is used as it is, so several
    launchers, and a job and its successor, can share one. Raises `RunDirError`.
    """
    if path is not None and not path.strip():
        raise RunDirError("the run directory's name is empty: give --ft-run-dir a folder.")
    place = os.path.abspath(path if path is not None else default_run_dir(run_id))
    _answered(lambda: _prepare(place), place)
    return place


def _prepare(place: str) -> None:
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        os.mkdir(place, 0o700)
    except FileExistsError:
        pass  # looked at below
    except OSError as error:
        raise RunDirError(f"run directory {place} cannot be made: {error.strerror}. {_REMEDY}") from None
    _check(place)


def _check(place: str) -> None:
    """Refuse what another user could have planted or could write to."""
    try:
        found = os.lstat(place)
    except OSError as error:
        raise RunDirError(f"run directory {place} cannot be read: {error.strerror}. {_REMEDY}") from None
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
        raise RunDirError(f"run directory {place} {problem}. {_REMEDY}")


_REMEDY = "Give --ft-run-dir a folder of your own; one that does not exist is made."


def _answered(action: Callable[[], None], place: str) -> None:
    """Do this in a thread, and do not wait for ever: on a network filesystem any call may hang."""
    caught: list[BaseException] = []

    def attempt() -> None:
        try:
            action()
        except BaseException as error:  # handed to the caller, whatever it is
            caught.append(error)

    thread = threading.Thread(target=attempt, name="holdfast-run-dir", daemon=True)
    thread.start()
    thread.join(ANSWER)
    if thread.is_alive():
        raise RunDirError(
            f"run directory {place}: its filesystem has not answered for {ANSWER:g} s. {_REMEDY}"
        )
    if caught:
        raise caught[0]


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
