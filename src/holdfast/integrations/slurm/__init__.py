"""`holdfast slurm`: one training through as many runs of a Slurm job as it takes.

    script.py   what is asked for (nodes, time, limits, the command), and the batch script
    job.py      what Slurm knows of a job and its nodes, and what follows from it; Slurm's commands
    attempt.py  from within the job: which job may train in a run directory; the beginning and the end of an attempt
    submit.py   from the outside: submitting, and how the last chain stands

The ledger, and what follows from it, are those of `holdfast.autoresume`. Import from the modules.
"""
