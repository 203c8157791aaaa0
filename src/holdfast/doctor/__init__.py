"""`holdfast doctor`: whether this machine can run a training under Holdfast, and with a warm start.

    checks.py        each check is one function from facts to a finding; all of them run within a deadline
    facts.py         facts of this machine
    kernel_trial.py  a program that tries what a launcher does with processes
    import_trial.py  `--trial`: a zygote imports what the script imports
    table.py         findings, as lines and as JSON

Always holds: nothing is changed, every process that was started has ended, and a check that fails or blocks costs
only its own line.
Does not cover: other nodes of a job, and the network between them.
"""
