"""What `holdfast slurm` was asked for, whether it makes sense, and its batch script. Pure.

The script is short, to be read and edited by people. What always holds: whatever is in a path or an argument reaches
the programs as it is (quoted), and the script ends with exit code 0 only when the training is finished or the job has
been requeued.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ...fault_tolerance.errors import ConfigError

MARGIN = 30
"""Seconds between the end of the time to save and Slurm's own SIGKILL; a third of the notice where that is less."""

LAUNCHER = "holdfast.fault_tolerance.launcher"

OURS = (
    *("nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "node-rank", "standalone", "ft-run-dir"),
    "ft-preempted-exit-code",
)
"""Options of ft_launcher that the batch script gives: only the job knows its nodes, and how an attempt ended is known
by this exit code."""

PORT = "$((20000 + SLURM_JOB_ID % 10000))"
"""Two jobs on a node seldom have the same."""

PROGRAM = ("-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path")


DONE = 100
"""Exit code of `--attempt-begins` when there is nothing to do: the training is finished."""

REFUSED = 101
"""That of `--attempt-begins` when no attempt may begin, now or later; any other than these and 0 may pass."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One training on Slurm."""

    run_dir: str
    """Absolute, on a filesystem that all nodes see."""
    command: tuple[str, ...]
    """`ft_launcher …`, as it is started on each node."""
    python: str
    """The interpreter that has Holdfast, absolute; the batch script asks it."""
    nodes: int = 1
    time: str = ""
    """As `sbatch --time` takes it; empty for the partition's default."""
    notice: int = 180
    """Seconds before the time limit at which the training is asked to stop."""
    name: str = "train"
    options: tuple[str, ...] = ()
    """More options for `sbatch`, such as `--partition=gpu`."""
    port: str = PORT
    """Of the rendezvous: a number, or the shell's expression `PORT`."""
    max_failures: int = 3
    max_jobs: int | None = None
    exclude_after: int = 2
    """Failures that one node begins after which it is left out."""

    @property
    def saving(self) -> int:
        """Seconds that ranks may take to save."""
        return self.notice - min(MARGIN, self.notice // 3)

    @property
    def flag(self) -> str:
        """The finished flag."""
        return f"{self.run_dir}/finished.flag"

    @property
    def launcher(self) -> int:
        """How many words of the command come before the launcher's own options."""
        return launcher_words(self.command)


def checked(plan: Plan) -> Plan:
    """The plan itself. Raises `ConfigError` with one line that names the option, its value and what is allowed."""
    taken = [name for name in OURS if name in _launcher_options(plan.command)]
    if taken:
        raise ConfigError(f"--{taken[0]} after --: the batch script gives it, leave it out")
    for name, value in (
        ("--run-dir", plan.run_dir),
        ("--job-name", plan.name),
        *(("--sbatch", option) for option in plan.options),
    ):
        if re.search(r"[\x00-\x1f\x7f\"\\]", value):
            raise ConfigError(
                f"{name} {value!r}: no quotes, backslashes or control characters in a batch script"
            )
    if plan.port != PORT and not (re.fullmatch("[0-9]{1,5}", plan.port) and 0 < int(plan.port) < 65536):
        raise ConfigError(f"--port {plan.port!r}: give a number from 1 to 65535")
    if "%" in plan.run_dir:
        raise ConfigError(f"--run-dir {plan.run_dir!r}: Slurm would replace the % in the name of the log")
    for option in plan.options:
        if len(option) >= len("--no-r") and "--no-requeue".startswith(option):
            raise ConfigError(f"--sbatch={option}: the job has to be requeued, leave it out")
        if not option.startswith("-"):
            raise ConfigError(
                f"--sbatch {option!r}: an option of sbatch begins with -, such as --partition=gpu"
            )
        if _is(option, "array", "a", shortest=2):
            raise ConfigError(
                f"--sbatch {option!r}: the tasks of an array would train beside each other in one run directory; "
                "submit one job for each run directory"
            )
    seconds = time_limit(plan.time) if plan.time else None
    if seconds is not None and seconds <= plan.notice:
        raise ConfigError(
            f"--time {plan.time} and --notice {plan.notice}: the notice comes before the job has begun; make one "
            "longer or the other shorter"
        )
    return plan


def _is(option: str, long: str, short: str, *, shortest: int) -> bool:
    """Whether sbatch takes it for this option, which it knows by its first letters, too."""
    if not option.startswith("--"):
        return option.startswith(f"-{short}")
    name = option[2:].partition("=")[0].split()[:1]
    return bool(name) and len(name[0]) >= shortest and long.startswith(name[0])


def _launcher_options(command: Sequence[str]) -> set[str]:
    """The names of ft_launcher's options. The program begins with its file, or after one of `PROGRAM`."""
    names = set()
    for word in command[launcher_words(command) :]:
        if word in PROGRAM or (word.endswith(".py") and not word.startswith("-")):
            break
        if word.startswith("--"):
            names.add(word.partition("=")[0].lstrip("-").replace("_", "-"))
    return names


def launcher_words(command: Sequence[str]) -> int:
    """How many words start ft_launcher. Raises `ConfigError` where the command starts something else."""
    if command and command[0].rpartition("/")[2] == "ft_launcher":
        return 1
    if len(command) > 2 and command[1] == "-m" and command[2] == LAUNCHER:
        return 3
    shown = " ".join(command)[:80]
    raise ConfigError(
        f"the command after -- must begin with ft_launcher (or python -m {LAUNCHER}): {shown!r}"
    )


def time_limit(text: str) -> int:
    """Seconds of a time as sbatch takes it: `90`, `4:00:00`, `2-12`. Raises `ConfigError`. Source: sbatch(1)."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ConfigError(f"--time {text!r}: give minutes, or hours:minutes:seconds, or days-hours")
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    # days-hours[:minutes[:seconds]], hours:minutes:seconds, minutes[:seconds]
    units = (3600, 60, 1) if days is not None or len(numbers) == 3 else (60, 1, 0)
    return int(days or 0) * 86400 + sum(number * unit for number, unit in zip(numbers, units, strict=False))


def batch_script(plan: Plan, version: str) -> str:
    """The text of a file for sbatch."""
    return "\n".join([_head(plan, version), _options(plan), _body(plan), ""])


def _head(plan: Plan, version: str) -> str:
    return f"""#!/bin/bash
# Written by holdfast slurm (holdfast {version}): one training through as many runs of this job as it takes.
# `scancel` ends it for good; `holdfast autoresume --status RUN_DIR` tells how each attempt ended."""


def _options(plan: Plan) -> str:
    given = [
        f'--job-name="{plan.name}"',
        f"--nodes={plan.nodes}",
        "--ntasks-per-node=1",
        *([f"--time={plan.time}"] if plan.time else []),
        f"--signal=TERM@{plan.notice}",
        "--requeue",
        "--open-mode=append",
        f'--output="{plan.run_dir}/slurm-%j.log"',
        *plan.options,
    ]
    return "\n".join(f"#SBATCH {option}" for option in given)


def _body(plan: Plan) -> str:
    start = plan.launcher
    launcher, rest = shlex.join(plan.command[:start]), shlex.join(plan.command[start:])
    limits = f"--max-failures={plan.max_failures} --exclude-after={plan.exclude_after} --notice={plan.notice}"
    if plan.max_jobs is not None:
        limits += f" --max-jobs={plan.max_jobs}"
    return f"""
run_dir={shlex.quote(plan.run_dir)}
export FAULT_TOL_FINISHED_FLAG_FILE=$run_dir/finished.flag
keep() {{
    {shlex.quote(plan.python)} -m holdfast slurm --run-dir="$run_dir" \\
        {limits} "$@"
}}

for pause in 10 30 60 ""; do
    HOLDFAST_ATTEMPT=$(keep --attempt-begins) # its number
    case $? in
    0) break ;;
    {DONE}) exit 0 ;; # finished before
    {REFUSED}) exit 1 ;;
    esac
    [[ -n $pause ]] || exit 1
    sleep "$pause" # a full disk, say, which may pass
done
export HOLDFAST_ATTEMPT

# SIGTERM reaches this shell too when Slurm ends the job; it lives on, to see to what follows.
term_came=
trap 'term_came=1' TERM
# srun does not inherit it from sbatch any more.
[[ -z ${{SLURM_CPUS_PER_TASK:-}} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port={plan.port}

# As python above, ft_launcher is there whatever the environment of the job is.
export PATH="$PATH":{shlex.quote(plan.python.rpartition("/")[0])}
# The first launcher to leave must not end those that still save: neither --kill-on-bad-exit nor --wait.
srun --kill-on-bad-exit=0 --wait=0 --export=ALL \\
    bash -c 'exec "$@"' bash {launcher} --nnodes="$SLURM_NNODES" \\
    --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" \\
    --ft-preempted-exit-code=75 --term-timeout={plan.saving} --ft-run-dir="$run_dir" \\
    {rest} &
srun=$!
while :; do # bash heeds a signal only while it waits for the background
    while [[ -n $term_came ]]; do # before the wait, or while the one before was seen to
        term_came=
        keep --job-ends # at the time limit it requeues at once, for this shell has only KillWait seconds left
    done
    wait "$srun"
    code=$?
    [[ -n $term_came ]] || break
done

# Notes how it ended; requeues the job, or ends the chain.
keep --attempt-ended="$code"
exit"""
