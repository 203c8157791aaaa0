"""The finished flag: the file that exists once the training is finished. FAULT_TOL_FINISHED_FLAG_FILE names it.

What always holds: a flag that may belong to this run directory is never removed, and one that cannot is never
believed; only an empty regular file is removed: another one may be a user's file, named by mistake. What is no
regular file is no flag. A filesystem that does not answer has none: one attempt too many does no harm.

Does not cover: who creates it; the Lightning callbacks with `autoresume=True` do, other programs do it themselves.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

from ..callbacks.completion import FLAG_VARIABLE
from ..fault_tolerance.errors import ConfigError
from ..in_time import TooLate, within
from ..journal.writer import PREFIX, SUFFIX
from . import ledger_file, lock
from .ledger import Ledger
from .ledger_file import say
from .outcome import Kind

VARIABLE = FLAG_VARIABLE
NAME = "finished.flag"
ANSWER = 20.0
"""Seconds that the filesystem may take."""

OF_SLURM = (".slurm.lock", "slurm-job.json", "job.sbatch")
"""What `holdfast slurm` keeps in a run directory (`integrations.slurm.claim`)."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Standing(Enum):
    """Whose flag it is that is there before an attempt."""

    NONE = "there is none"
    OURS = "an attempt of this run directory has finished the training"
    NO_MORE = "the last attempt has asked that no further one be made"
    STALE = "of another run: there was no attempt yet in this run directory that could have made it"


def path_of(environ: Mapping[str, str], run_dir: str) -> str:
    """What the user's environment names, else a file in the run directory; absolute.

    Raises `ConfigError` for the name of a file that is ours.
    """
    path = os.path.abspath(environ.get(VARIABLE) or os.path.join(run_dir, NAME))
    folder, name = os.path.split(path)
    journal = name.startswith(PREFIX) and name.endswith(SUFFIX)
    if folder == os.path.abspath(run_dir) and (journal or name in (ledger_file.NAME, lock.NAME, *OF_SLURM)):
        raise ConfigError(f"{VARIABLE}={path}: {name} is a file of the run directory's own. Name another one")
    return path


def exists(path: str) -> bool:
    """Whether the training is finished."""
    with suppress(OSError, TooLate):
        return within(ANSWER, lambda: os.path.isfile(path))
    return False


def settle(ledger: Ledger, path: str) -> Standing:
    """Whose flag is there, before a chain begins or is carried on: NONE, OURS or NO_MORE. A stale one is removed.

    Raises `ConfigError`, also where the training could not create it.
    """
    found = standing(ledger, path, there=exists(path))
    if found is Standing.STALE:
        remove(path)
        say(
            f"removed {path}: it was there before the first attempt in this run directory, so another run made it"
        )
        found = Standing.NONE
    if found is Standing.NONE:
        check(path)
    return found


def standing(ledger: Ledger, path: str, *, there: bool) -> Standing:
    """What a flag at `path` means at the begin of a chain, or where one is continued."""
    if not there:
        return Standing.NONE
    made_by = [chain for chain in ledger.chains if chain.attempts and chain.flag in ("", path)]
    if not made_by:
        return Standing.STALE
    shut_down = ledger.attempts[-1].kind is Kind.SHUT_DOWN
    return Standing.NO_MORE if shut_down else Standing.OURS


def remove(path: str) -> None:
    """Remove a stale flag. Raises `ConfigError`, also for a file that looks like no flag."""
    try:
        within(ANSWER, lambda: _refuse_foreign(path))
        within(ANSWER, lambda: os.unlink(path))
    except FileNotFoundError:
        pass
    except (OSError, TooLate) as error:
        raise ConfigError(
            f"{VARIABLE}={path}: of another run, and cannot be removed: {_why(error)}"
        ) from None


def check(path: str) -> None:
    """Raise `ConfigError` where the training could not create the flag. A full disk is not final, and no error.

    The same for a file that looks like no flag. One that is there and may be the run's own is not to be checked.
    """
    try:
        within(ANSWER, lambda: _refuse_foreign(path))
        within(ANSWER, lambda: _try(path))
    except (OSError, TooLate) as error:
        raise ConfigError(
            f"{VARIABLE}={path}: the training could not create this file when it is finished: {_why(error)}"
        ) from None


def _refuse_foreign(path: str) -> None:
    """Flags are made by `touch`. A file with something in it was named by mistake, and a link may lead to one."""
    try:
        found = os.lstat(path)
    except OSError:
        return  # told of by what comes next
    full = stat.S_ISREG(found.st_mode) and found.st_size
    if full or (stat.S_ISLNK(found.st_mode) and os.path.isfile(path)):
        what = f"has {found.st_size} bytes in it" if full else "is a symbolic link to a file"
        raise ConfigError(
            f"{VARIABLE}={path}: was there before the first attempt and {what}, so it is left alone: a finished "
            "flag is an empty file that the training makes. Name another one, or remove it"
        )


def _try(path: str) -> None:
    with suppress(FileNotFoundError):
        os.stat(path)  # links that lead in a circle, say
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.path.exists(path) and not os.path.isfile(path):  # /dev/null, say
        raise OSError(errno.EINVAL, "a device, pipe or socket has this name")
    probe = f"{path}.probe-{os.getpid()}"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        return
    os.unlink(probe)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"its filesystem has not answered for {ANSWER:g} s"
