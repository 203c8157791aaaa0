"""The file that tells an auto-resume loop that the training is finished: FAULT_TOL_FINISHED_FLAG_FILE.

What always holds: the file is there with all of its (no) content or not at all, and survives a power cut; that it
cannot be made is said, and ends nothing. Does not cover: removing it; who starts a training anew does that.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

    Log = logging.Logger | logging.LoggerAdapter[Any]


VARIABLE = "FAULT_TOL_FINISHED_FLAG_FILE"


def why_unusable() -> str:
    """What is missing in the environment, for people; nothing if it names the file."""
    if flag_path() is not None:
        return ""
    return (
        f"'{VARIABLE}' env variable is not set. Was this job launched with FT launcher? With autoresume=True the "
        f"script that starts the jobs says in it which file means that the training is finished, for example: "
        f"export {VARIABLE}=$PWD/finished.flag."
    )


def flag_path() -> Path | None:
    """What the environment names; None where it names none."""
    text = os.environ.get(VARIABLE, "")
    return Path(text) if text else None


def create(path: Path, log: Log) -> bool:
    """Make the file, if it is not there; an error is logged. Whether it is there now."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    except OSError as error:
        log.error(
            "the finished flag %s cannot be created: %s. Whoever looks for it will start a further job",
            path,
            error.strerror,
        )
        return False
    with suppress(OSError):  # not every filesystem can
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return True
