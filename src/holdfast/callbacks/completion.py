"""Is the training finished, so that no further job is needed? What an auto-resume loop reads of it: a file that states
it, and in the journal from which checkpoint a cycle continued.

The loop starts jobs until the file named by FAULT_TOL_FINISHED_FLAG_FILE exists, so `why_complete` must be true in the
end, and never too early. The file exists with all of its (no) content or not at all, and survives a power cut. An
error in making it is logged, and ends nothing.
Does not cover: programs whose end is none of these (they create the file themselves); a failure between two trainings
of one process, when the file is there.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.checkpoints.atomic import flush
from holdfast.fault_tolerance import environment
from holdfast.journal.writer import Journal

FLAG_VARIABLE = "FAULT_TOL_FINISHED_FLAG_FILE"
"""The file that a training creates when it is finished; `holdfast autoresume` starts no attempt after it."""


def why_complete(
    iterations: int | None,
    *,
    global_step: int = 0,
    max_steps: int | None = -1,
    epoch: int = 0,
    max_epochs: int | None = -1,
    asked_to_stop: bool = False,
    in_mid_epoch: bool = False,
    early_stopping: bool = False,
) -> str:
    """In which way a training that ended without an exception is complete, for people; nothing when it is not.

    Args:
        iterations: Training batches of this fit. None where the framework always has a limit, and few mean nothing.
        global_step: Optimizer steps done.
        max_steps: -1 or None without such a limit; so is `max_epochs`.
        epoch: Epochs done.
        max_epochs: The limit of epochs.
        asked_to_stop: The framework was asked to stop.
        in_mid_epoch: The last batch was not the last one of its epoch.
        early_stopping: It was an EarlyStopping callback that asked.
    """
    if _reached(global_step, max_steps):
        return f"max_steps={max_steps} reached"
    if _reached(epoch, max_epochs) and not (asked_to_stop and in_mid_epoch):
        # Lightning counts an epoch that was cut short as done.
        return f"max_epochs={max_epochs} reached"
    if asked_to_stop and early_stopping:
        return "early stopping"
    if iterations is not None and iterations <= 1:
        return f"nothing more to do: this job ended after {iterations} training iterations"
    return ""


def _reached(value: int, limit: int | None) -> bool:
    return limit is not None and 0 < limit <= value


def flag_path() -> Path | None:
    """The file that the environment names; None where it names none."""
    text = os.environ.get(FLAG_VARIABLE, "")
    return Path(text) if text else None


def why_no_flag() -> str:
    """What is missing in the environment, for people; nothing if it names the file."""
    if flag_path() is not None:
        return ""
    return (
        f"'{FLAG_VARIABLE}' env variable is not set. Was this job launched with FT launcher? With autoresume=True the "
        f"script that starts the jobs says in it which file means that the training is finished, for example: "
        f"export {FLAG_VARIABLE}=$PWD/finished.flag."
    )


def create_flag(path: Path | None, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
    """The file exists then, where there is a path."""
    if path is None:
        return
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    except OSError as error:
        log.error(
            "the finished flag %s cannot be created: %s. An auto-resume loop will start a further job",
            path,
            error.strerror,
        )
        return
    with suppress(OSError):
        flush(path.parent)


def remove_flag(path: Path | None, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
    """A training begins: the file that an earlier one has made is removed. One with content is a user's, and stays."""
    if path is None:
        return
    try:
        if path.is_file() and path.stat().st_size == 0:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.error(
            "the finished flag %s of an earlier training cannot be removed: %s. An auto-resume loop will end with "
            "success if this training fails",
            path,
            error.strerror,
        )


def record_chosen(path: str) -> None:
    """Record from which checkpoint this cycle continues; for rank 0 to call.

    Auto-resume suspects a checkpoint after which two attempts failed before they had taken a step.
    """
    _record("rank-0", "checkpoint_chosen", [{"path": path}] if path else [])


def record_suspects(blamed: Sequence[Mapping[str, Any]]) -> None:
    """Record the nodes for which the job stops, an event `node_suspected` for each; for rank 0 to call.

    Auto-resume, `holdfast slurm` and the launcher of the next job in the run directory leave them out.
    """
    # In a file of its own: most readers leave out those of ranks, in which each report is.
    _record("stragglers", "node_suspected", [{"node": socket.gethostname(), **fields} for fields in blamed])


def _record(writer: str, kind: str, events: Sequence[Mapping[str, Any]]) -> None:
    """Write to the job's journal, if there is one. Waits a second for the disk at most, and raises nothing."""
    run_dir = environment.run_dir()
    if not events or run_dir is None:
        return
    journal = Journal(run_dir, f"{socket.gethostname()}.{writer}")
    for fields in events:
        journal.record(kind, cycle=environment.cycle(), **fields)
    journal.close()
