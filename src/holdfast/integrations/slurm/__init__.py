"""`holdfast slurm`: one training through as many runs of a Slurm job as it takes.

    plan.py      what is asked for: nodes, time, limits, the command
    script.py    the batch script
    facts.py     what `scontrol show job` tells, and what that says of an attempt's end
    exclusion.py  which nodes it can do without
    place.py     which run of which job this is, on which nodes
    commands.py  squeue, scontrol, sbatch, scancel
    claim.py     which job trains in a run directory
    attempt.py   the beginning and the end of an attempt, inside the job
    submission.py  from the outside

The ledger, and what follows from it, are those of `holdfast.autoresume`. Import from the modules.
"""
