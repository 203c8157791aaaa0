"""What somebody asks `holdfast slurm` for, and whether it makes sense. Pure."""

from __future__ import annotations

import re
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
"""Options of ft_launcher that the batch script gives: only the job knows its nodes, and how an attempt ended is told
by this exit code."""

PORT = "$((20000 + SLURM_JOB_ID % 10000))"
"""Two jobs on a node seldom have the same."""

PROGRAM = ("-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path")


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
    """Seconds before the time limit at which the training is told to stop."""
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
