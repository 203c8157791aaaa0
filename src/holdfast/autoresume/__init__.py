"""Auto-resume: a training that needs several attempts ends as if it had been one job.

    ending.py       how an attempt ended, from its exit code, the finished flag, the journal and the scheduler
    account.py      what the journal tells of an attempt: who failed and why, how far it came
    ledger.py       the attempts of a run directory, in chains; the records that they are kept as
    budget.py       go on or not: failures in a row, ends that get nowhere, the number of jobs; nodes to leave out
    wording.py      all of it in sentences
    ledger_file.py  the ledger on disk
    lock.py         one chain for one run directory
    flag.py         the finished flag: FAULT_TOL_FINISHED_FLAG_FILE
    command.py      one attempt as a process: tied to us, signalled, ended to the last of its processes
    chain.py        the loop of `holdfast autoresume`
    table.py        the ledger for people

Import from the modules; this package itself imports nothing.
"""
