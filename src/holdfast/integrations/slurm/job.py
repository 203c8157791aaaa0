"""What Slurm knows of a job and its nodes, and what follows: why an attempt ended, which nodes to leave out.

The first part is pure, the second part calls Slurm's commands.

What always holds: a job that Slurm itself is ending is never taken for one that may be requeued: `scontrol requeue`
would bring a cancelled job back. A job keeps as many nodes as it needs, and those that its submitter asked for by name:
a job that waits forever is worse than a bad node. Each call of a command ends within `ANSWER` seconds, and what Slurm
says in an error is in the exception. Names and paths in what it says may have any bytes, as file names in Python.

Does not cover: what else a job asks of its nodes (--constraint, --gres); `sinfo` tells of a partition as a whole.
Source: scontrol(1), seen with Slurm 22.05; `Restarts` rises and the job has a new start time as soon as it is requeued.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from ...autoresume.outcome import ASKED_TO_END, PREEMPTED_CODE, SIGKILL_CODE, Scheduler
from ...fault_tolerance.errors import HoldfastError

LOOKS = 60.0
"""Seconds: Slurm may send the signal before a time limit so much too early. Source: sbatch(1), --signal."""

OVER = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"})
OVER |= {"PREEMPTED", "REVOKED", "TIMEOUT"}
"""States of a job that will not run again. Source: squeue(1), job state codes."""

BROKEN = ("down", "drain", "fail")
"""How the names of states begin in which Slurm gives nodes to no job. Source: sinfo(1), node state codes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process runs: which run of which job, on which nodes."""

    job: str
    restarts: int
    nodes: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Place | None:
        """By Slurm's environment; None outside a job."""
        number = environ.get("SLURM_JOB_ID", "")
        restarts = environ.get("SLURM_RESTART_COUNT", "0")
        if not number.isdecimal() or not restarts.isdecimal():
            return None
        return cls(number, int(restarts), environ.get("SLURM_JOB_NODELIST", ""))

    @property
    def run(self) -> str:
        """`4711.2`: the second restart of job 4711."""
        return f"{self.job}.{self.restarts}"

    @property
    def runs_before(self) -> tuple[str, ...]:
        """The earlier runs of the job."""
        return tuple(f"{self.job}.{restarts}" for restarts in range(self.restarts))

    def precedes(self, run: str) -> bool:
        """Whether that is a later run of the same job."""
        job, _, restarts = run.partition(".")
        return job == self.job and restarts.isdecimal() and int(restarts) > self.restarts


@dataclass(frozen=True, slots=True)
class Job:
    """A job as `scontrol show job` tells of it."""

    state: str = ""
    """Empty where Slurm does not know the job (any more)."""
    restarts: int = 0
    began: float | None = None
    """Unix seconds of this run's start."""
    limit: float | None = None
    """Seconds that a run may take; None without a limit."""
    preempted: bool = False
    """Another job has been given its nodes, after a grace."""
    excluded: str = ""
    """Nodes that it must not get."""
    required: str = ""
    """Nodes that it must get: its submitter named them."""
    partition: str = ""
    nodes: int = 1
    """How many it needs."""
    requeueable: bool = True
    """`scontrol requeue` may start it again."""
    reason: str = ""
    """Why it waits, in Slurm's word."""

    @property
    def alive(self) -> bool:
        """It runs, or will."""
        return bool(self.state) and self.state not in OVER


@dataclass(frozen=True, slots=True)
class Word:
    """What Slurm has to do with the end of an attempt."""

    scheduler: Scheduler
    says: str = ""
    requeued: bool = False
    """Slurm has requeued the job by itself."""


def job_of(text: str) -> Job:
    """Read the output of `scontrol show job`, with times in UTC; of a job array's task as well."""

    def field(name: str) -> str:
        found = re.search(rf"(?:^|\s){name}=(\S*)", text)
        value = found[1] if found else ""
        return "" if value in ("(null)", "None", "Unknown", "N/A") else value

    return Job(
        state=field("JobState"),
        restarts=int(field("Restarts") or 0),
        began=_moment(field("StartTime")),
        limit=_duration(field("TimeLimit")),
        preempted=bool(field("PreemptTime")),
        excluded=field("ExcNodeList"),
        required=field("ReqNodeList"),
        partition=field("Partition"),
        requeueable=field("Requeue") != "0",
        nodes=int(re.match(r"\d*", field("NumNodes"))[0] or 1),  # type: ignore[index]  # it may be 2-4
        reason=field("Reason"),
    )


def word_of(
    job: Job, *, restarts: int, code: int, now: float, notice: float, told_to_stop: bool = False
) -> Word:
    """Whether Slurm ended the attempt that was run number `restarts` of the job and whose `srun` ended with `code`.

    `told_to_stop`: the launchers got a signal that asks for the end, and no rank failed by itself. SIGKILL is then
    the launcher's own, of ranks that did not stop in time.
    """
    killed = told_to_stop and code == SIGKILL_CODE
    asked = killed or code == PREEMPTED_CODE or code in ASKED_TO_END
    left = None if job.began is None or job.limit is None else job.began + job.limit - now
    if job.restarts > restarts:
        return _requeued(job)
    if job.state == "RUNNING" or not job.state:
        if asked and job.preempted:
            late = "; it did not stop in time, and was killed" if killed else ""
            return Word(Scheduler.PREEMPTED, f"preempted by a job of higher priority{late}")
        if asked and left is not None and left <= notice + LOOKS:
            how = "did not stop when told to, and was killed" if killed else "stopped"
            return Word(Scheduler.TIME_LIMIT, f"{how} {max(0, round(left))} s before the time limit")
        return Word(Scheduler.NOTHING)
    if left is not None and left <= 0:
        return Word(Scheduler.TIME_LIMIT, "Slurm ended the job at its time limit")
    return Word(Scheduler.CANCELLED, "cancelled by the user (scancel)")


def _requeued(job: Job) -> Word:
    if job.preempted:
        return Word(Scheduler.PREEMPTED, "preempted and requeued by Slurm", requeued=True)
    return Word(Scheduler.NODE_LOST, "Slurm has lost a node of the job and requeued it", requeued=True)


BY_SOMEBODY = Word(
    Scheduler.PREEMPTED, "requeued from outside (scontrol requeue?): Slurm has lost no node", requeued=True
)
"""In place of a lost node where none of the job's nodes is down: no fault of a node, nor of the program."""


def node_name(told: str) -> str:
    """Slurm's name of a node that a launcher calls `n1:4711` (with its pid) or `n1.example.org`."""
    return told.partition(":")[0].partition(".")[0]


def spared(
    bad: Iterable[str],
    nodes: Mapping[str, str],
    *,
    needed: int,
    excluded: Collection[str] = (),
    required: Collection[str] = (),
) -> tuple[str, ...]:
    """Those of the `bad` nodes, in their order, that can be left out beside those that are `excluded` already.

    `nodes` are the states of all nodes on which the job may run.
    """
    left = {name: state for name, state in nodes.items() if name not in excluded}
    out = []
    for node in bad:
        if node in required or node not in left:
            continue
        rest = {name: state for name, state in left.items() if name != node}
        if len(rest) < needed or (works(left[node]) and sum(map(works, rest.values())) < needed):
            continue
        out.append(node)
        left = rest
    return tuple(out)


def works(state: str) -> bool:
    """Whether Slurm may give this node to a job, now or when others have ended."""
    return not state.startswith(BROKEN) and not state.endswith("*")


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _duration(text: str) -> float | None:
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds


# -- Slurm's commands

ANSWER = 60.0
TIMES = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
"""How Slurm writes times: its own are local ones, of which an hour is there twice when summer time ends."""
PAUSES = (1.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds before each further try."""


class SlurmError(HoldfastError):
    """Slurm has refused something, or does not answer. The message is one line."""


class NoAnswer(SlurmError):
    """Slurm has not answered in time: it may do it all the same."""


def job(number: str, answer: float = ANSWER) -> Job:
    """What Slurm knows of a job, nothing where it knows none. Raises `SlurmError` when it cannot be asked.

    `answer`: seconds that it may take.
    """
    try:
        return job_of(_run("scontrol", "show", "job", number, answer=answer, more=TIMES))
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
    """Leave these out too, in addition to those of the job. Only a pending job can be changed so."""
    before = job(number).excluded
    _run(
        "scontrol",
        "update",
        f"JobId={number}",
        f"ExcNodeList={before},{nodes}" if before else f"ExcNodeList={nodes}",
    )


def can_be_left_out(number: str, bad: Collection[str]) -> tuple[tuple[str, ...], list[str], int]:
    """Of these nodes those that the job can do without and has not been told to, those that it cannot, and how many
    nodes it needs."""
    known = job(number)
    excluded = names(known.excluded)
    found = spared(
        bad, states(known.partition), needed=known.nodes, excluded=excluded, required=names(known.required)
    )
    return found, [node for node in bad if node not in (*found, *excluded)], known.nodes


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


def _run(
    *command: str, text: str | None = None, answer: float = ANSWER, more: Mapping[str, str] | None = None
) -> str:
    """What a command prints. `more` is laid over its environment."""
    given = None if text is None else os.fsencode(text)
    environ = {**os.environ, **(more or {})}
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=answer, env=environ)
    except OSError as error:
        raise SlurmError(f"{command[0]}: {error.strerror}. Is Slurm installed on this machine?") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} has not answered for {answer:g} s") from None
    if done.returncode:
        said = " ".join(os.fsdecode(done.stderr or done.stdout).split())
        raise SlurmError(f"{' '.join(command[:2])}: {said or f'exit code {done.returncode}'}")
    return os.fsdecode(done.stdout)
