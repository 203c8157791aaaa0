"""The finished flag: the file that is there when the training is finished. FAULT_TOL_FINISHED_FLAG_FILE names it.

What always holds: a flag that may belong to this run directory is never removed, and one that cannot is never
believed; what is no regular file is no flag, and is never touched. A filesystem that does not answer has no flag: one
attempt too many does no harm.

Does not cover: who creates it; the Lightning callbacks with `autoresume=True` do, other programs do it themselves.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

from ..fault_tolerance.errors import ConfigError
from ..in_time import TooLate, within
from .ending import Kind
from .ledger import Ledger

VARIABLE = "FAULT_TOL_FINISHED_FLAG_FILE"
NAME = "finished.flag"
ANSWER = 20.0
"""Seconds that the filesystem may take."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Standing(Enum):
    """Whose flag it is that is there before an attempt."""

    NONE = "there is none"
    OURS = "an attempt of this run directory has finished the training"
    NO_MORE = "the last attempt has asked that no further one be made"
    STALE = "of another run: there was no attempt yet in this run directory that could have made it"


def path_of(environ: Mapping[str, str], run_dir: str) -> str:
    """What the user's environment names, else a file in the run directory; absolute."""
    return os.path.abspath(environ.get(VARIABLE) or os.path.join(run_dir, NAME))


def exists(path: str) -> bool:
    """Whether the training is finished."""
    with suppress(OSError, TooLate):
        return within(ANSWER, lambda: os.path.isfile(path))
    return False


def standing(ledger: Ledger, path: str, *, there: bool) -> Standing:
    """What a flag at `path` means for somebody who is about to begin a chain, or to carry one on."""
    if not there:
        return Standing.NONE
    made_by = [chain for chain in ledger.chains if chain.attempts and chain.flag in ("", path)]
    if not made_by:
        return Standing.STALE
    shut_down = ledger.attempts[-1].kind is Kind.SHUT_DOWN
    return Standing.NO_MORE if shut_down else Standing.OURS


def remove(path: str) -> None:
    """Remove a stale flag. Raises `ConfigError`."""
    try:
        within(ANSWER, lambda: os.unlink(path))
    except FileNotFoundError:
        pass
    except (OSError, TooLate) as error:
        raise ConfigError(
            f"{VARIABLE}={path}: of another run, and cannot be removed: {_why(error)}"
        ) from None


def check(path: str) -> None:
    """Raise `ConfigError` where the training could not create the flag. A full disk is not final, and no error."""
    try:
        within(ANSWER, lambda: _try(path))
    except (OSError, TooLate) as error:
        raise ConfigError(
            f"{VARIABLE}={path}: the training could not create this file when it is finished: {_why(error)}"
        ) from None


def _try(path: str) -> None:
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
