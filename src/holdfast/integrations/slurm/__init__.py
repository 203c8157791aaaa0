"""`holdfast slurm`: one training through as many runs of a Slurm job as it takes.

    script.py    what is asked for (nodes, time, limits, the command), and the batch script
    facts.py     what Slurm reports of a job and its nodes, and what follows from it
    commands.py  squeue, scontrol, sbatch, scancel
    claim.py     from the outside: submitting, which job trains in a run directory, how it stands
    attempt.py   from within the job: the beginning and the end of an attempt

The ledger, and what follows from it, are those of `holdfast.autoresume`. Import from the modules.
"""
