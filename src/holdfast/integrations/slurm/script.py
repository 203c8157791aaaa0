"""The batch script of a plan: short, to be read and edited by people. Pure.

What always holds: whatever is in a path or an argument reaches the programs as it is (quoted), and the script ends
with exit code 0 only when the training is finished or the job has been requeued.
"""

from __future__ import annotations

import shlex

from .plan import Plan

DONE = 100
"""Exit code of `--attempt-begins` when there is nothing to do: the training is finished."""

REFUSED = 101
"""That of `--attempt-begins` when no attempt may begin, now or later; any other than these and 0 may pass."""


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
        keep --job-ends # at the time limit: requeues at once, for this shell has only KillWait seconds left
    done
    wait "$srun"
    code=$?
    [[ -n $term_came ]] || break
done

# Notes how it ended; requeues the job, or ends the chain.
keep --attempt-ended="$code"
exit"""
