"""`holdfast slurm [options] -- ft_launcher …`: one training through as many runs of a Slurm job as it takes.

What always holds: what is wrong with the command line, or refused, is one line on stderr and exit code 2, and nothing
was submitted.

Does not cover: what happens inside the job; the batch script calls this command again for that (`--attempt-begins`,
`--job-ends`, `--attempt-ended`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import uuid
from typing import TYPE_CHECKING

from ..fault_tolerance.errors import ConfigError, HoldfastError
from .options import prepared_run_dir, whole_number

if TYPE_CHECKING:
    from ..integrations.slurm.attempt import Keeper
    from ..integrations.slurm.script import Plan

EPILOG = """The batch script's exit code: 0 the training is finished (or the job was requeued); 1 given up; 93 a rank
requested the end of the job, or the job made no progress; 130 cancelled."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "slurm",
        usage="holdfast slurm [options] -- ft_launcher --nproc-per-node=N ... train.py ...",
        help="submit a training to Slurm, to be requeued until it is finished",
        description="Write a batch script that starts ft_launcher on every node, and submit it. The job is requeued "
        "after preemptions, time limits and failures until the file that FAULT_TOL_FINISHED_FLAG_FILE names is there.",
        epilog=EPILOG,
    )
    _where(parser)
    _limits(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the batch script; write and submit nothing"
    )
    parser.add_argument("--attempt-begins", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--job-ends", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--attempt-ended", type=int, metavar="CODE", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _where(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--run-dir", metavar="DIR", help="ledger, journal, log and finished flag, on a filesystem of all nodes; the "
        "same again carries on. Default: a new folder here")  # fmt: skip
    add("--nodes", type=whole_number(), default=1, metavar="N", help="default: 1")
    add("--time", default="", metavar="LIMIT", help="of one run, as sbatch --time takes it")
    add("--notice", type=whole_number(), default=180, metavar="SECONDS", help="the training is requested to stop this "
        "long before the time limit (default: 180); it may take 30 s less to save, or a third less")  # fmt: skip
    add("--job-name", default="train", metavar="NAME", help="default: train")
    add("--port", default="", metavar="PORT", help="of the rendezvous (default: 20000 + job id modulo 10000)")
    add("--sbatch", action="append", default=[], metavar="OPTION", help="one more option for sbatch, as "
        "--sbatch=--partition=gpu; may be given several times")  # fmt: skip


def _limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-failures", type=whole_number(), default=3, metavar="N", help="give up after N failures in a row without "
        "progress between them; preemptions and time limits are none (default: 3)")  # fmt: skip
    add("--max-jobs", type=whole_number(), metavar="N", help="make at most N attempts (default: any number)")
    add("--exclude-after", type=whole_number(), default=2, metavar="N", help="leave a node out after N failures "
        "that began on it (default: 2)")  # fmt: skip


def run(arguments: argparse.Namespace) -> str | bytes | int:
    """The batch script or the job's number, else the exit code of what happens inside the job."""
    if arguments.attempt_begins or arguments.job_ends or arguments.attempt_ended is not None:
        return _inside(arguments)
    from .. import __version__
    from ..integrations.slurm.job import NoAnswer
    from ..integrations.slurm.script import batch_script, checked
    from ..integrations.slurm.submit import submit

    plan = checked(_plan(arguments))
    if arguments.dry_run:
        return os.fsencode(batch_script(plan, __version__))  # a path may have any bytes
    prepared_run_dir(plan.run_dir, "slurm")
    try:
        return f"{submit(plan)}\n"
    except HoldfastError as error:
        # It was made here, and no job uses it: one that Slurm has taken without an answer would.
        if not arguments.run_dir and not isinstance(error, NoAnswer):
            shutil.rmtree(plan.run_dir, ignore_errors=True)
        raise


def _plan(arguments: argparse.Namespace) -> Plan:
    from ..integrations.slurm.script import Plan, launcher_words

    words: list[str] = arguments.command
    if not words or words[0] != "--" or len(words) == 1:
        raise ConfigError(
            "no command: holdfast slurm [options] -- ft_launcher --nproc-per-node=N … train.py …"
        )
    launcher_words(words[1:])
    name = time.strftime("slurm-%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:6]
    return Plan(
        run_dir=os.path.abspath(arguments.run_dir or name),
        command=tuple(words[1:]),
        python=sys.executable,
        nodes=arguments.nodes,
        time=arguments.time,
        notice=arguments.notice,
        name=arguments.job_name,
        options=tuple(arguments.sbatch),
        max_failures=arguments.max_failures,
        max_jobs=arguments.max_jobs,
        exclude_after=arguments.exclude_after,
        **({"port": arguments.port} if arguments.port else {}),
    )


def _inside(arguments: argparse.Namespace) -> str | int:
    try:
        if arguments.attempt_begins:
            return _begins(arguments)
        keeper = _keeper(arguments)
        return keeper.job_ends() if arguments.job_ends else keeper.ended(arguments.attempt_ended)
    except HoldfastError as error:
        print(f"[holdfast] {error}", file=sys.stderr)
        return 1


def _begins(arguments: argparse.Namespace) -> str | int:
    """The attempt's number for the batch script, or an exit code that shows whether trying again may help."""
    from ..autoresume.run_dir import Taken
    from ..integrations.slurm.attempt import Refused
    from ..integrations.slurm.script import DONE, REFUSED

    keeper = _keeper(arguments)
    try:
        code = keeper.begins()
    except (Refused, Taken) as error:
        print(f"[holdfast] {error}", file=sys.stderr)
        return REFUSED
    if code == 0:
        return f"{keeper.number}\n"
    return DONE if code == DONE else REFUSED


def _keeper(arguments: argparse.Namespace) -> Keeper:
    import signal

    from ..autoresume.policy import Limits
    from ..integrations.slurm.attempt import Keeper
    from ..integrations.slurm.job import Place

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals everybody; what is noted here takes a moment
    place = Place.of(os.environ)
    if place is None or not arguments.run_dir:
        options = "--attempt-begins, --job-ends and --attempt-ended"
        raise ConfigError(f"{options} are for the batch script, inside a Slurm job")
    return Keeper(
        os.path.abspath(arguments.run_dir),
        place,
        Limits(max_failures=arguments.max_failures, max_jobs=arguments.max_jobs),
        exclude_after=arguments.exclude_after,
        notice=float(arguments.notice),
    )
