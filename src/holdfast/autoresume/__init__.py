"""Auto-resume: a training that needs several attempts ends as if it had been one job.

    outcome.py  how an attempt ended, from its exit code, the finished flag, the journal and the scheduler
    ledger.py   the attempts of a run directory, in chains; the records that they are kept as
    policy.py   the retry policy: another attempt or not, and why; nodes to leave out
    run_dir.py  the ledger on disk, the lock, the finished flag
    command.py  one attempt as a process, and the signals meanwhile
    chain.py    the loop of `holdfast autoresume`

Import from the modules; this package itself imports nothing.
"""
