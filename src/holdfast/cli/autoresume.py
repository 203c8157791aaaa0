"""`holdfast autoresume [options] -- ft_launcher …`: start a training again until it is finished; and `--status`.

What always holds: what is wrong with the command line, the run directory or the flag's folder is one line on stderr
and exit code 2, and nothing was started.

Does not cover: the attempts themselves; that is `autoresume.chain`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..fault_tolerance.errors import ConfigError
from ..visible import escaped
from .options import moment, prepared_run_dir, seconds, table, table_width, whole_number

if TYPE_CHECKING:
    from ..autoresume.ledger import Attempt, Chain, Ledger
    from ..autoresume.run_dir import Now

EPILOG = """exit codes: 0 the training is finished; 1 given up, or not finished after --max-jobs; 2 wrong options, or
another holdfast autoresume or a Slurm job is at work there, and nothing was started; 93 a rank requested the end of the
job, or the job made no progress; 130, 143 Ctrl-C, SIGTERM."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "autoresume",
        usage="holdfast autoresume [options] -- ft_launcher ...\n       holdfast autoresume --status RUN_DIR [--json]",
        help="start a training again, after failures and preemptions, until it is finished",
        description="Run a command, ft_launcher or any other, again and again on this machine until the file that "
        "FAULT_TOL_FINISHED_FLAG_FILE names is there. Preemptions do not count as failures.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="ledger of attempts, journal and finished flag; the same again carries on. Default: that of "
        "ft_launcher (--ft-run-dir), else a new one in the user's state folder",
    )
    parser.add_argument(
        "--max-failures",
        type=whole_number(),
        default=3,
        metavar="N",
        help="give up after N failures in a row without progress between them (default: 3)",
    )
    parser.add_argument(
        "--max-jobs", type=whole_number(), metavar="N", help="make at most N attempts (default: any number)"
    )
    parser.add_argument(
        "--max-idle",
        type=whole_number(2),
        default=3,
        metavar="N",
        help="give up after N attempts in a row that ended with exit code 0, without the finished flag, and got "
        "nowhere: no new step, or within 5 minutes where no steps are reported (default: 3)",
    )
    parser.add_argument(
        "--backoff",
        type=seconds,
        default=5.0,
        metavar="SECONDS",
        help="wait before the attempt that follows one of less than a minute; twice as long after each further such "
        "one, at most 5 minutes (default: 5)",
    )
    parser.add_argument(
        "--status", metavar="RUN_DIR", help="print the attempts of a run directory, and start nothing"
    )
    parser.add_argument("--json", action="store_true", help="with --status: print JSON instead of a table")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def run(arguments: argparse.Namespace) -> str | int:
    """What --status prints, else the exit code of the chain. Raises HoldfastError where nothing was started."""
    return _run(arguments) if arguments.status is None else _status(arguments)


def _run(arguments: argparse.Namespace) -> int:
    words = _command(arguments)
    from ..autoresume.chain import Keeper, Plan, launcher_in
    from ..autoresume.command import Signals
    from ..autoresume.policy import Limits
    from ..autoresume.run_dir import LedgerFile, flag_path, hold
    from ..integrations.slurm.attempt import refuse_jobs

    launcher = launcher_in(words, os.environ)
    signals = Signals()
    with signals.caught():  # before anything asks a filesystem in a thread, which signals would reach
        run_dir = _run_dir(arguments.run_dir, launcher.run_dir)
        limits = Limits(
            max_failures=arguments.max_failures,
            max_jobs=arguments.max_jobs,
            max_idle=arguments.max_idle,
            first_wait=arguments.backoff,
        )
        plan = Plan(tuple(words), run_dir, flag_path(os.environ, run_dir), limits, launcher)
        with hold(run_dir):
            refuse_jobs(run_dir)
            file = LedgerFile(run_dir)
            file.read()
            return Keeper(plan, file, signals).keep()


def _command(arguments: argparse.Namespace) -> list[str]:
    given: list[str] = arguments.command
    if arguments.json:
        raise ConfigError("--json goes with --status")
    if not given:
        raise ConfigError("no command: holdfast autoresume [options] -- ft_launcher …")
    if given[0] != "--":
        raise ConfigError(
            f"{given[0]!r} stands where -- should: holdfast autoresume [options] -- {' '.join(given)[:80]}"
        )
    if len(given) == 1:
        raise ConfigError("no command after --")
    if problem := _why_missing(given[1]):
        raise ConfigError(problem)
    return given[1:]


def _why_missing(program: str) -> str:
    """Why there is no such program, for people; nothing where there is one."""
    if not program.strip():
        return "the command after -- is an empty word (a variable that is not set?)"
    if shutil.which(program):
        return ""
    if os.path.dirname(program) and os.path.exists(program):
        return f"{program} cannot be executed (is it a file, with mode +x?)"
    return f"{program}: no such program" + ("" if os.path.dirname(program) else " in PATH")


def _run_dir(given: str | None, launchers: str | None) -> str:
    if given is not None and launchers is not None and os.path.realpath(given) != os.path.realpath(launchers):
        raise ConfigError(
            f"--run-dir {given} and ft_launcher's run directory {launchers} are two; give one of them"
        )
    name = time.strftime("autoresume-%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:6]
    return prepared_run_dir(launchers if given is None else given, name)


def _status(arguments: argparse.Namespace) -> str:
    from ..autoresume.run_dir import LEDGER, LedgerFile, LedgerUnreadable, now_here
    from ..integrations.slurm.submit import slurm_says

    if arguments.command:
        raise ConfigError(f"--status starts nothing; leave {' '.join(arguments.command)[:80]!r} out")
    if arguments.run_dir is not None:
        raise ConfigError(f"--status names the run directory itself; leave --run-dir {arguments.run_dir} out")
    run_dir: str = arguments.status
    if not os.path.exists(os.path.join(run_dir, LEDGER)):
        raise LedgerUnreadable(
            f"{run_dir}: no {LEDGER} in it. Is it the run directory of a holdfast autoresume?"
        )
    ledger = LedgerFile(run_dir).read()
    now = slurm_says(ledger) or now_here(ledger)
    if arguments.json:
        return json.dumps(_chains_with_attempts(ledger, now), indent=2) + "\n"
    return _table(ledger, now)


def _table(ledger: Ledger, now: Now) -> str:
    """A table and what came of each chain; cut to the terminal's width, or whole for a file or another program."""
    if not ledger.chains:
        return "no attempts\n"
    rows = [
        _row(attempt, now.attempt if attempt is ledger.open_attempt else "-") for attempt in ledger.attempts
    ]
    titles = ("attempt", "began", "ran", "ended", "why")
    lines = table(titles, rows, ("attempt", "ran"), "why", table_width()) if rows else []
    return "\n".join([*lines, *_chains(ledger, now), ""])


def _chains_with_attempts(ledger: Ledger, now: Now) -> list[dict[str, object]]:
    """Times are unix seconds."""
    chains = []
    for chain in ledger.chains:
        attempts = [
            {**asdict(attempt), "kind": attempt.kind and attempt.kind.value, "seconds": attempt.seconds}
            for attempt in chain.attempts
        ]
        state, why = _standing(chain, ledger, now)
        chains.append({**asdict(chain), "attempts": attempts, "state": state, "why": why})
    return chains


def _row(attempt: Attempt, ended: str) -> dict[str, str]:
    from ..autoresume.policy import cause, duration

    where = f"pid {attempt.pid} on {attempt.host}" if attempt.pid else attempt.job or attempt.host
    return {
        "attempt": str(attempt.number),
        "began": moment(attempt.began),
        "ran": "-" if attempt.seconds is None else duration(attempt.seconds),
        "ended": ended if attempt.kind is None else str(attempt.kind),
        "why": where if attempt.kind is None else cause(attempt),
    }


def _chains(ledger: Ledger, now: Now) -> list[str]:
    lines = []
    for chain in ledger.chains:
        which = f"chain {chain.number}: " if len(ledger.chains) > 1 else ""
        state, why = _standing(chain, ledger, now)
        # Why it is over mostly begins with the state, in the words of the sentence.
        text = why if why.startswith(state) else f"{state}: {why}" if why else state
        lines.append(escaped(which + text))
    return lines


def _standing(chain: Chain, ledger: Ledger, now: Now) -> tuple[str, str]:
    """The state of a chain, and why."""
    if chain.ended:
        return chain.state, chain.why
    if chain is ledger.chain and now.state:
        return now.state, now.why
    return f"its keeper{chain.keeper} is gone: the next holdfast autoresume carries it on", ""
