"""Auto-resume: a training that needs several attempts ends as if it had been one job.

    outcome.py      how an attempt ended, from its exit code, the finished flag, the journal and the scheduler
    account_file.py  what the journal tells of it, from a run directory
    ledger.py       the attempts of a run directory, in chains; the records that they are kept as
    policy.py       the retry policy: go on or not, and why; nodes to leave out
    ledger_file.py  the ledger on disk
    lock.py         one chain for one run directory
    keeping.py      who keeps it
    flag.py         the finished flag: FAULT_TOL_FINISHED_FLAG_FILE
    started.py      what a command line tells of ft_launcher
    command.py      one attempt as a process: tied to us, found to the last of its processes
    signals.py      signals as events
    run.py          one attempt from its start to its very end
    takeover.py     what a killed keeper has left running
    chain.py        the loop of `holdfast autoresume`
    log.py          what is told meanwhile
    table.py        the ledger for people

Import from the modules; this package itself imports nothing.
"""
