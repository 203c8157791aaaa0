"""`holdfast autoresume` at work: attempts one after the other, until the ledger says that it is enough.

What always holds: an attempt begins only when everything of the one before it has ended; what happened is in the
ledger before anything follows from it; and each line on stderr says who, what, how we know, what happens next.

Does not cover: what follows from an attempt's end (`policy`), and jobs of a cluster's scheduler (`holdfast slurm`).
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..callbacks.completion import FLAG_VARIABLE
from ..fault_tolerance.errors import ConfigError
from ..fault_tolerance.launcher.ranks import orphans
from ..fault_tolerance.processes import proc
from . import ledger as records
from . import policy, run_dir
from .command import MARK, NUMBER, STOPS, Cancelled, Command, Signals, await_end, shown
from .ledger import Attempt, Chain
from .outcome import PREEMPTED_CODE, SHUT_DOWN_CODE, Ending, Evidence, Kind, ending_of
from .policy import Decision, Limits, State, decide
from .run_dir import LedgerFile, Standing, read_account, say

CANNOT_EXECUTE = 126
"""As a shell has it."""

RUN_DIR, PREEMPTED = "PET_FT_RUN_DIR", "PET_FT_PREEMPTED_EXIT_CODE"
"""Where `ft_launcher` looks for what its command line does not say."""

MODULE = ".fault_tolerance.launcher"


@dataclass(frozen=True, slots=True)
class Launcher:
    """What is known of the `ft_launcher` that a command starts."""

    is_launcher: bool = False
    run_dir: str | None = None
    """None where neither command line nor environment names one."""
    preempted_code: int = PREEMPTED_CODE


def launcher_in(command: Sequence[str], environ: Mapping[str, str]) -> Launcher:
    """Read the command (a list of words), and what the environment adds to it."""
    arguments = _arguments(command)
    given: dict[str, str] = {}
    if arguments is not None:
        from ..fault_tolerance.launcher.command_line.options import Vocabulary, scan

        with suppress(ConfigError):
            line = scan(arguments, Vocabulary())
            given = {key: each.value for key, each in line.ft.items() if isinstance(each.value, str)}
    code = given.get("preempted_exit_code") or environ.get(PREEMPTED, "").strip()
    return Launcher(
        is_launcher=arguments is not None,
        run_dir=given.get("run_dir") or environ.get(RUN_DIR, "").strip() or None,
        preempted_code=int(code) if code.isdecimal() else PREEMPTED_CODE,
    )


def _arguments(command: Sequence[str]) -> Sequence[str] | None:
    """What follows `ft_launcher`, or `-m holdfast.fault_tolerance.launcher`; None where neither is in the command."""
    for index, word in enumerate(command):
        if os.path.basename(word) == "ft_launcher" or (word.endswith(MODULE) and "-m" in command[:index]):
            return command[index + 1 :]
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, and where."""

    command: tuple[str, ...]
    run_dir: str
    flag: str
    limits: Limits
    launcher: Launcher


class Keeper:
    """Keeps one chain. The run directory's lock is held by the caller, and signals are caught there."""

    def __init__(self, plan: Plan, file: LedgerFile, signals: Signals) -> None:
        """`file` has been read."""
        self._plan, self._file, self._signals = plan, file, signals
        self._host = socket.gethostname()
        self._before = 0
        """Attempts of the chain that a killed keeper has made."""

    def keep(self) -> int:
        """Run attempts until the chain is over; returns the exit code. Raises `ConfigError` before the first."""
        orphans.adopt()
        try:
            self._end_open_attempt()
            early = self._settle_flag()
            if early is not None:
                return early
            self._begin()
            return self._run()
        except Cancelled as stop:
            # No attempt of ours ran: nothing is lost, and the next one to come begins a chain of its own.
            return self._over(_cancelled(stop.number, stop.left or "before the next attempt"))

    # Before the first attempt

    def _end_open_attempt(self) -> None:
        """What a killed keeper has left: wait for its end, and note it."""
        attempt = self._file.ledger.open_attempt
        if attempt is None:
            return
        seen = False
        if attempt.host != self._host:
            say(
                f"warning: attempt {attempt.number} ran on {attempt.host or 'an unknown host'}: "
                "what it may have left running there cannot be seen from here"
            )
        elif attempt.mark:
            seen = await_end(attempt, self._signals)
        known = self._evidence(attempt, None)
        if self._chain.flag != self._plan.flag:
            known = replace(known, flag=False)  # the flag of today is not the one that it could have made
        self._file.append(
            records.attempt_ends(time.time(), attempt.number, ending_of(known), exit_code=None, seen=seen)
        )
        say(
            f"{policy.attempt_ended(self._file.ledger.attempts[-1])}; the process that ran this chain was killed"
        )

    def _settle_flag(self) -> int | None:
        """The exit code, where a finished flag says that there is nothing to do."""
        path = self._plan.flag
        found = run_dir.settle_flag(self._file.ledger, path)
        if found is Standing.OURS:
            if self._file.ledger.chain and not self._file.ledger.chain.ended:
                self._file.append(
                    records.chain_ends(time.time(), str(State.FINISHED), "the finished flag is there")
                )
            say(f"finished already: {path} is there. To train on, remove it")
            return 0
        if found is Standing.NO_MORE:
            last = policy.attempt_ended(self._file.ledger.attempts[-1])
            say(f"nothing is started: {last}. To train on all the same, remove {path}")
            return SHUT_DOWN_CODE
        return None

    def _begin(self) -> None:
        before = self._file.ledger.chain
        carries_on = before is not None and not before.ended
        pid = os.getpid()
        self._file.append(
            records.chain_begins(
                time.time(),
                command=self._plan.command,
                flag=self._plan.flag,
                host=self._host,
                pid=pid,
                started=proc.start_time(pid),
                carries_on=carries_on,
            )
        )
        self._before = len(self._chain.attempts)
        say(f"the ledger of attempts is {self._file.path}, the finished flag will be {self._plan.flag}")

    # The attempts

    def _run(self) -> int:
        while True:
            decision = decide(self._chain, self._plan.limits, self._before)
            if not decision.goes_on:
                return self._over(decision)
            self._wait(decision)
            stopped = self._attempt()
            if stopped is not None:
                return self._over(self._stopped(stopped))

    @property
    def _chain(self) -> Chain:
        return self._file.ledger.chains[-1]

    def _wait(self, decision: Decision) -> None:
        number = self._file.ledger.next_number
        if self._chain.attempts:
            when = f"in {policy.duration(decision.wait)}" if decision.wait else "now"
            say(f"{decision.why}; attempt {number} follows {when}")
        until = time.monotonic() + decision.wait
        # Also a signal that came a moment ago, between two attempts.
        while (came := self._signals.wait(until)) is not None:
            if came in STOPS:
                raise Cancelled(came)

    def _attempt(self) -> signal.Signals | None:
        """Run one to its very end; returns the signal that cancelled it, if any."""
        attempt = Attempt(self._file.ledger.next_number, time.time(), host=self._host, mark=uuid.uuid4().hex)
        # Before there is anything to be found.
        self._file.append(records.attempt_begins(attempt.began, attempt))
        try:
            command = Command(self._plan.command, self._environment(attempt), self._signals, attempt.number)
        except OSError as error:
            self._not_started(attempt, error)
            return None
        attempt = replace(attempt, pid=command.pid, started=command.started)
        self._file.append(records.attempt_begins(attempt.began, attempt))
        say(f"attempt {attempt.number} begins: {shown(self._plan.command)} (pid {command.pid})")
        code = command.watch()
        known = self._evidence(attempt, code, command.cancelled_by)
        self._file.append(
            records.attempt_ends(
                time.time(), attempt.number, ending_of(known), exit_code=code, account=known.account
            )
        )
        return command.cancelled_by

    def _not_started(self, attempt: Attempt, error: OSError) -> None:
        """No process to be had, or a filesystem that is away for the moment: it counts as a failure."""
        why = f"{self._plan.command[0]} cannot be started: {error.strerror}"
        ending = Ending(Kind.FAILED, why, node=self._host)
        self._file.append(records.attempt_ends(time.time(), attempt.number, ending, exit_code=CANNOT_EXECUTE))

    def _environment(self, attempt: Attempt) -> Mapping[str, str]:
        plan = self._plan
        return {
            **os.environ,
            # The plan has what the environment says of them; on its command line ft_launcher may say otherwise.
            PREEMPTED: str(plan.launcher.preempted_code),
            RUN_DIR: plan.run_dir,
            FLAG_VARIABLE: plan.flag,
            NUMBER: str(attempt.number),
            MARK: attempt.mark,
        }

    # After it

    def _evidence(self, attempt: Attempt, code: int | None, stop: signal.Signals | None = None) -> Evidence:
        return Evidence(
            exit_code=code,
            flag=run_dir.flag_exists(self._plan.flag),
            cancelled_by="" if stop is None else ("Ctrl-C" if stop is signal.SIGINT else stop.name),
            account=read_account(self._plan.run_dir, attempt.began),
            preempted_code=self._plan.launcher.preempted_code,
            is_launcher=self._plan.launcher.is_launcher,
        )

    def _stopped(self, number: signal.Signals) -> Decision:
        """After an attempt that was asked to end: it may have come to its end all the same."""
        decision = decide(self._chain, self._plan.limits, self._before)
        if decision.state in (State.FINISHED, State.SHUT_DOWN):
            return decision
        return _cancelled(number, policy.attempt_ended(self._chain.attempts[-1]))

    def _over(self, decision: Decision) -> int:
        why = decision.why
        if decision.state is State.GAVE_UP:
            try:
                run_dir.check_flag(self._plan.flag)
            except ConfigError as error:
                why = f"{why}; and {error}"
        if self._file.ledger.chain is not None and not self._file.ledger.chain.ended:
            self._file.append(records.chain_ends(time.time(), str(decision.state), why))
        if self._file.lacks:
            again = ", and may train again" if decision.state is State.FINISHED else ""
            why = f"{why}; but {self._file.path} lacks the end of this: the next start does not know of it{again}"
        say(f"{why}. Exit code {decision.exit_code}. {self._next_step(decision)}")
        return decision.exit_code

    def _next_step(self, decision: Decision) -> str:
        run_dir = shlex.quote(self._plan.run_dir)
        again = f". To train on, give the command again with --run-dir {run_dir}"
        look = f"All attempts: holdfast autoresume --status {run_dir}"
        return look if decision.state is State.FINISHED else look + again


def _cancelled(number: signal.Signals, what: str) -> Decision:
    by = "Ctrl-C" if number is signal.SIGINT else number.name
    return Decision(State.CANCELLED, f"cancelled by the user ({by}): {what}", exit_code=128 + number)
