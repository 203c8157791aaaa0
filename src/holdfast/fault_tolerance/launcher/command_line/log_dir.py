"""The folder of ``--log-dir``, made before anything starts: torch makes it when the ranks start, and fails with them.

What always holds: after `make_log_dir` a folder could be made in it, by this user, in time.

Does not cover: what happens to it later, and its disk filling up.
"""

from __future__ import annotations

import os
import tempfile

from holdfast.in_time import TooLate, within

from ...errors import ConfigError

__all__ = ["make_log_dir"]

ANSWER = 10.0
"""Seconds that its filesystem may take."""


def make_log_dir(path: str) -> None:
    """Make the folder where it is missing, and see that folders can be made in it. Raises `ConfigError`.

    The null device is torch's word for no logs, and left as it is.

    Does not cover: ranks of other nodes; each launcher looks at its own.
    """
    if path == os.devnull:
        return
    try:
        within(ANSWER, lambda: _make(path))
    except OSError as error:
        problem = error.strerror or str(error)
    except TooLate:
        problem = f"its filesystem has not answered for {ANSWER:g} s"
    else:
        return
    raise ConfigError(
        f"--log-dir: no logs can be kept in {os.path.abspath(path)}: {problem}; give another folder"
    )


def _make(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    # Nothing short of trying is sure: root may write everywhere, and yet not in /proc or on a read-only disk.
    os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=path))
