"""Which job trains in a run directory: a small file that outlives the runs of the job.

What always holds: two jobs never both have the claim, nor a job and a `holdfast autoresume`. It is looked at and taken
under a lock that is held for moments, and it counts as long as Slurm knows its job as pending or running. Jobs look for
a keeper (`autoresume.keeping`) under that lock, and keepers, which hold theirs by then, for a claim: whoever comes
second sees the other.

Does not cover: filesystems without locks; there the ledger is all there is, and a warning says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterator

from ...autoresume import keeping, lock
from ...autoresume.ledger_file import LedgerFile
from ...autoresume.log import say
from ...fault_tolerance.errors import HoldfastError
from . import commands

NAME = "slurm-job.json"
LOCK = ".slurm.lock"
PATIENCE = 60.0
"""Seconds to wait for somebody who looks at the claim just now."""


class Refused(HoldfastError):
    """Another job trains there. The message is one line: which, and what to do."""


@contextlib.contextmanager
def looked_at(run_dir: str) -> Iterator[None]:
    """Nobody else takes the claim inside this block."""
    until = time.monotonic() + PATIENCE
    held = None
    while held is None:
        try:
            held = lock.take(run_dir, LOCK)
        except lock.Held:
            if time.monotonic() > until:
                raise Refused(f"somebody has held {run_dir}/{LOCK} for {PATIENCE:g} s") from None
            time.sleep(0.1)
        except lock.Unlockable as error:
            say(f"warning: no lock ({error}): make sure that no other job trains in {run_dir}")
            break
    try:
        yield
    finally:
        if held is not None:
            held.close()


def read(run_dir: str) -> str:
    """The job that has the claim; empty where none does."""
    try:
        with open(os.path.join(run_dir, NAME)) as file:
            told = json.load(file)
        return str(told["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def refuse_others(run_dir: str, mine: str = "") -> None:
    """Raises `Refused` if another job than `mine` has the claim and lives, or nobody can say whether it does."""
    owner = read(run_dir)
    if not owner or owner == mine:
        return
    try:
        job = commands.job(owner)
    except commands.SlurmError as error:
        raise Refused(
            f"job {owner} has trained in {run_dir}, and whether it still does is not known ({error}). If it is over: "
            f"rm {shlex.quote(os.path.join(run_dir, NAME))}"
        ) from None
    if job.alive:
        raise Refused(
            f"job {owner} trains in {run_dir} already ({job.state}). Wait for it, end it (scancel {owner}), or use "
            "another run directory"
        )


def refuse_keepers(run_dir: str, file: LedgerFile) -> None:
    """Raises `keeping.Taken` where a `holdfast autoresume` is at work."""
    with keeping.hold(run_dir, file):
        pass


def refuse_jobs(run_dir: str) -> None:
    """For a `holdfast autoresume` that holds its lock: raises `Refused` where a job trains, or will."""
    # Who makes the lock's file after this sees that ours is held.
    if os.path.lexists(os.path.join(run_dir, LOCK)) or read(run_dir):
        with looked_at(run_dir):
            refuse_others(run_dir)


def write(run_dir: str, job: str) -> None:
    """Take the claim. Raises OSError with the file's name."""
    path = os.path.join(run_dir, NAME)
    try:
        with open(f"{path}.tmp", "w") as file:
            json.dump({"job": job}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def keep(run_dir: str, job: str) -> None:
    """The claim for a job that is about to train. A disk that does not take it is warned of, and no reason not to."""
    if read(run_dir) == job:
        return
    try:
        write(run_dir, job)
    except OSError as error:
        say(
            f"warning: {error.filename} cannot be written: {error.strerror}. Make sure that no other job trains in "
            f"{run_dir}"
        )
