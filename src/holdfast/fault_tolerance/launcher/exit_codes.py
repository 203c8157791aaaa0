"""How ranks end, in words and as exit codes; and every way in which a launcher ends: it takes its codes from the table.
Pure.

docs/reference/exit-codes.md is written from it by `make reference`. A new ending is a member here, and a job that ends
so in tests/nodes/test_codes_of_launchers.py.

Does not cover: a launcher that a signal ends before its first line or that gets SIGKILL; the page describes those.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

FAILED = 1
USAGE = 2
DO_NOT_REQUEUE = 93  # a rank requested the shutdown of the whole workload
INTERRUPTED = 130  # Ctrl-C

_HINTS = {
    "SIGKILL": "ended from outside, often by the kernel for lack of memory",
    "SIGSEGV": "crashed in native code (invalid memory access)",
    "SIGBUS": "crashed in native code (bad memory mapping, often a full /dev/shm)",
    "SIGABRT": "aborted by native code (failed assertion, or a watchdog such as NCCL's)",
    "SIGFPE": "crashed in native code (arithmetic)",
    "SIGILL": "crashed in native code (illegal instruction)",
    "SIGXFSZ": "a file reached the limit of its size: ulimit -f",
    "SIGTERM": "not sent by the launcher",
    "SIGINT": "interrupted",
}


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank ended: `status` as subprocess has it (negative = signal), `at` in monotonic seconds."""

    rank: int
    local_rank: int
    pid: int
    status: int
    at: float
    patience: float | None = None  # seconds after which the launcher itself killed it
    by_launcher: bool = False  # it obeyed a signal of the launcher

    @property
    def signal_name(self) -> str | None:
        """The signal that ended it, by name, or None."""
        if self.status >= 0:
            return None
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"

    @property
    def end(self) -> str:
        """How it ended, in short: `SIGKILL` or `exit code 3`."""
        return self.signal_name or f"exit code {self.status}"

    @property
    def meaning(self) -> str:
        """In words: `exit code 3`, `killed by SIGSEGV (crashed in native code …)`."""
        name = self.signal_name
        if name is None:
            return f"exit code {self.status}"
        if self.patience is not None:
            return f"killed by {name} (by the launcher, after {max(0.0, self.patience):.1f} s)"
        if self.by_launcher:
            return f"killed by {name} (by the launcher)"
        hint = _HINTS.get(name)
        return f"killed by {name}" + (f" ({hint})" if hint else "")


def as_exit_code(status: int) -> int:
    """A rank's own code, or 128+n for signal n, as a shell reports it."""
    return 128 - status if status < 0 else status


def obeyed(found: RankExit, number: int) -> bool:
    """Whether the rank ended by the signal that was passed on (or as a shell reports it): that is no failure."""
    return found.status in (0, -number, 128 + number)


# -- the launcher ---------------------------------------------------------------------------------------------

SAME = "the same"
CONTINUE = "continue where enough nodes or spares are left, else the same"
ABSENT = "begin without this node where enough others come, else 1"


class Outcome(Enum):
    """How a launcher ends: its code, the condition, what the launchers of other nodes exit with (spares included), and
    whether the scheduler should run the job again.

    A code that depends on the ranks or on an option is a text.
    """

    # fmt: off
    SUCCEEDED = (0, "all ranks of all nodes succeeded", "the same, also a spare that was never used", "no")
    PREEMPTED = (
        "0, or `--ft-preempted-exit-code`",
        "preempted: a signal was forwarded to the ranks, and no rank failed by itself",
        "the same if they or the store's host got the signal, or all ranks stop at one step; else as after a lost node",
        "yes; set the option (75 is customary) to distinguish it from success")
    EXCLUDED = (
        0,
        "this node was excluded, at a rank's request or for its health, and enough nodes or spares are left; stderr "
        "has a line on it",
        "continue", "no")
    EXCLUDED_LAST = (
        FAILED,
        "this node was excluded at a rank's request, and too few nodes and spares are left",
        SAME, "yes, without this node")
    RANKS_DISAGREE = (
        FAILED,
        "no restart is left, and the failed ranks have different codes; or a rank hung or raised, and ended with 0",
        SAME, "as you like")
    NO_RESTART_LEFT = (FAILED, "no restart is left after the loss of a node, or of the ranks' store", SAME, "yes")
    NOT_STARTED = (
        FAILED, "a cycle could not start: the ranks of this node, or their store, could not be started",
        CONTINUE, "yes, on another node")
    CALLED_OFF = (FAILED, "11 cycles in a row were called off before their ranks started", SAME, "as you like")
    STUCK = (
        FAILED, "a rank of this node did not end even by SIGKILL (state D)", CONTINUE, "yes, on another node")
    TOO_FEW_NODES = (
        FAILED, "the rendezvous timed out: too few nodes joined within `join_timeout`, at the start or after a loss",
        SAME, "yes")
    HOST_LOST = (FAILED, "the node that hosts the rendezvous was lost", SAME, "yes")
    UNREACHABLE = (
        FAILED, "the node that hosts the rendezvous could not be reached at the start", ABSENT, "yes")
    NO_BOARDS = (
        FAILED, "there is no room for the ranks' boards, neither in /dev/shm nor in the temporary directory",
        ABSENT, "yes, on another node")
    LAUNCHER_FAILED = (FAILED, "the launcher itself failed, by a defect of Holdfast", CONTINUE, "yes")
    USAGE = (
        USAGE, "a wrong command line or setting: one line on stderr, nothing was started",
        ABSENT, "no: it would fail again")
    SHUT_DOWN = (
        DO_NOT_REQUEUE, "a rank requested the end of the whole job (`ShutdownWorkload`)",
        SAME, "no: this is the meaning of the code")
    NO_PROGRESS = (
        "93, or `--ft-no-restart-exit-code`",
        "failed cycles in a row [saved nothing new](launcher.md#a-job-that-makes-no-progress)",
        SAME, "no: repair the cause first")
    SAME_FAILURE = (
        "93, or `--ft-no-restart-exit-code`",
        "cycles in a row failed [with one exception at one step](launcher.md#a-failure-that-repeats-itself)",
        SAME, "no: repair the program or its data first")
    INTERRUPTED = (INTERRUPTED, "Ctrl-C (SIGINT)", "as after a preemption", "no")
    RANKS_KILLED = (
        "128 + n",
        "no restart is left; signal n ended the failed ranks: 137 for SIGKILL (no memory, or a hang), 139 for SIGSEGV",
        SAME, "as you like")
    RANKS_FAILED = (
        "any other", "no restart is left: the failed ranks' own code, where they agree",
        SAME, "as your program means it")
    # fmt: on

    @property
    def code(self) -> int:
        """The exit code. ValueError for an outcome whose code depends on the ranks or on an option."""
        code = self.value[0]
        if not isinstance(code, int):
            raise ValueError(f"{self.name} has no code of its own")
        return code


def of_stop(number: int, preempted_code: int) -> int:
    """The code of a job that this signal stopped and in which no rank failed."""
    return Outcome.INTERRUPTED.code if number == signal.SIGINT else preempted_code
