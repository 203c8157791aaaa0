"""Slurm's commands, with their answers as values.

What always holds: each call ends within `ANSWER` seconds, and what Slurm says in an error is in the exception. What
must not fail because the controller is being restarted is tried again (`insist`).

Does not cover: what the answers mean (`facts`).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from ...fault_tolerance.errors import HoldfastError
from .facts import Job, job_of

ANSWER = 60.0
PAUSES = (1.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds before each further try."""


class SlurmError(HoldfastError):
    """Slurm has refused something, or does not answer. The message is one line."""


def job(number: str, answer: float = ANSWER) -> Job:
    """What Slurm knows of a job, nothing where it knows none. Raises `SlurmError` when it cannot be asked.

    `answer`: seconds that it may take.
    """
    try:
        return job_of(_run("scontrol", "show", "job", number, answer=answer))
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return Job()
        raise


def submit(script: str) -> str:
    """Submit a batch script, given as text; the job's number."""
    return _run("sbatch", "--parsable", text=script).strip().partition(";")[0]


def requeue(number: str) -> None:
    _run("scontrol", "requeue", number)


def exclude(number: str, nodes: str) -> None:
    """Only a pending job can be changed so."""
    _run("scontrol", "update", f"JobId={number}", f"ExcNodeList={nodes}")


def cancel(number: str) -> None:
    _run("scancel", number)


def down(nodes: str) -> list[str]:
    """Which of these nodes (`n[1-2]`) Slurm takes for dead."""
    lines = _run("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T").splitlines()
    return sorted({name for name, state in (line.split() for line in lines) if state.startswith("down")})


def states(partition: str) -> dict[str, str]:
    """The state of each node of a partition, or of all where it is empty."""
    which = [f"--partition={partition}"] if partition else []
    lines = _run("sinfo", "--noheader", "--Node", *which, "--format=%N %T").splitlines()
    return dict(line.split() for line in lines)


def names(nodes: str) -> list[str]:
    """Each node of a list as Slurm writes it (`n[1-2]`)."""
    return _run("scontrol", "show", "hostnames", nodes).split() if nodes else []


def node_failed(number: str) -> bool:
    """Whether the accounting says that a run of the job ended by a lost node; False where there is none."""
    fields = ("--duplicates", "--allocations", "--noheader", "--parsable2", "--format=State")
    try:
        told = _run("sacct", f"--jobs={number}", *fields).split()
    except SlurmError:
        return False
    ended = [state for state in told if state not in ("PENDING", "RUNNING")]
    return ended[-1:] == ["NODE_FAIL"]


def insist(call: Callable[[], None]) -> None:
    """Call it until it succeeds, a minute at most. Raises the last `SlurmError`."""
    for pause in PAUSES:
        try:
            return call()
        except SlurmError:
            time.sleep(pause)
    return call()


def _run(*command: str, text: str | None = None, answer: float = ANSWER) -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=answer)
    except OSError as error:
        raise SlurmError(f"{command[0]}: {error.strerror}. Is Slurm installed on this machine?") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} has not answered for {answer:g} s") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise SlurmError(f"{' '.join(command[:2])}: {said or f'exit code {done.returncode}'}")
    return done.stdout
