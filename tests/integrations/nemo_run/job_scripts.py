"""The job script that NeMo-Run makes for a task with our plugins, and what bash does with it where Slurm is a pretence.

Only Slurm's commands are pretended, by small scripts on the PATH: what an attempt ended with is said by the test.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nemo_run as run

PRETENCE = {
    "srun": 'case "$*" in *ft_launcher*) eval "$ATTEMPT";; *) echo 127.0.0.1;; esac',
    "scontrol": """case "$1 $2" in
        "show job") echo "$FACTS";;
        show*) echo n1;;
        requeue*) echo "$2" >> "$TRIES"; [ "$(wc -l < "$TRIES")" -gt "${REFUSALS:-0}" ] && touch "$REQUEUED";;
    esac""",
    "squeue": """[ -s "$TRIES" ] && STATE=${LATER:-$STATE}
    case "$*" in *%L*) echo "${LEFT:-59:00}";; *) echo "${STATE:-RUNNING None}";; esac""",
    "sleep": 'echo "$1" >> "$PAUSES"',
    "sacct": 'printf "%s\\nRUNNING\\n" "$BEFORE"',
}


def executor(**fields: Any) -> Any:
    """Two nodes with two tasks each."""
    return run.SlurmExecutor(
        account="root",
        partition="main",
        nodes=2,
        ntasks_per_node=2,
        time="01:00:00",
        tunnel=run.LocalTunnel(job_dir=""),
        packager=run.Packager(),
        **fields,
    )


def script_for(task: Any, plugins: list[Any], where: Any | None = None) -> Path:
    """The file that NeMo-Run would submit."""
    with run.Experiment("plugins") as experiment:
        experiment.add(task, executor=where or executor(), name="char", plugins=plugins)
        experiment.dryrun(log=False, delete_exp_dir=False)
        return Path(experiment._exp_dir) / "char_sbatch.sh"


@dataclass
class Attempt:
    """How the script ended: its exit code, whether it had the job requeued, what it said last, its ledger's letters."""

    code: int
    requeued: bool
    said: str
    letters: str


def attempt(script: Path, tmp_path: Path, ended: str, restart: int = 0, **environment: str) -> Attempt:
    """Run the script once; `ended` is bash for what ft_launcher does, like `exit 3`."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name, text in PRETENCE.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    requeued, tries, pauses = (tmp_path / name for name in ("requeued", "tries", "pauses"))
    for left in (requeued, tries, pauses):
        left.unlink(missing_ok=True)
    count = {"SLURM_RESTART_COUNT": str(restart)} if restart else {}
    done = subprocess.run(
        ["bash", script],
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1",
            "ATTEMPT": ended,
            "REQUEUED": str(requeued),
            "TRIES": str(tries),
            "PAUSES": str(pauses),
            **count,
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # `set -v` repeats the whole script there
        text=True,
        timeout=120,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("[holdfast]")]
    ledger = script.parent / "char" / "char_job_results"
    lines = ledger.read_text().splitlines() if ledger.is_file() else []
    letters = "".join(line.split()[2] for line in lines)
    return Attempt(done.returncode, requeued.exists(), said[-1] if said else "", letters)
