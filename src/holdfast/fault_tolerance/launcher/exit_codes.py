"""Every way in which a launcher ends, with its exit code: the launcher takes its codes from this table. Pure.

docs/exit-codes.md is written from it by `python -m tests.launcher.exit_codes_page`. A new ending is a member here, and
a job that ends so in tests/nodes/test_codes_of_launchers.py.

Does not cover: a launcher that a signal ends before its first line or that gets SIGKILL; the page describes those.
"""

from __future__ import annotations

import signal
from enum import Enum

from .ranks.exits import DO_NOT_REQUEUE, FAILED, INTERRUPTED, USAGE

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
        0, "this node was excluded at a rank's request, and enough nodes or spares are left; stderr has a line on it",
        "continue", "no")
    EXCLUDED_LAST = (
        FAILED, "this node was excluded at a rank's request, and too few nodes and spares are left for the job",
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
