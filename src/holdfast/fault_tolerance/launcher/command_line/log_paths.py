"""Where logs are written: folders and files that must be usable before anything starts.

What always holds: a path that cannot be written to is one line with exit code 2, as is one whose filesystem does not
answer within `ANSWER`.
Does not cover: paths on other nodes; each launcher checks its own. A disk that fails later.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from holdfast.in_time import TooLate, within

from ...errors import ConfigError

ANSWER = 10.0
"""Seconds."""


def make_log_dir(path: str) -> None:
    """Make the folder of --log-dir where it is missing, and try to make a folder in it. Raises `ConfigError`.

    The null device is torch's word for no logs, and left as it is.
    """
    if path != os.devnull and (problem := _problem(lambda: _make(path))):
        where = os.path.abspath(path)
        raise ConfigError(f"--log-dir: no logs can be kept in {where}: {problem}; give another folder")


def check_log_files(applog_prefix: str | None, log_file: str | None) -> None:
    """Try to make a file with this prefix, and to open the file. Raises `ConfigError`. Makes no folder."""
    if applog_prefix is not None:
        folder = os.path.dirname(os.path.abspath(applog_prefix))
        if problem := _problem(lambda: _try(folder)):
            raise ConfigError(
                f"--ft-per-cycle-applog-prefix: no file can be made in {folder}: {problem}; make the folder or give "
                "another path"
            )
    if log_file is not None and (problem := _problem(lambda: _open(log_file))):
        raise ConfigError(
            f"--ft-launcher-log: {os.path.abspath(log_file)} cannot be written to: {problem}; give another path"
        )


def _problem(attempt: Callable[[], object]) -> str:
    try:
        within(ANSWER, attempt)
    except OSError as error:
        return error.strerror or str(error)
    except TooLate:
        return f"its filesystem has not answered for {ANSWER:g} s"
    return ""


def _make(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    _try(path)


def _try(folder: str) -> None:
    # Nothing short of trying is sure: root may write everywhere, and yet not in /proc or on a read-only disk.
    os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=folder))


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666))
