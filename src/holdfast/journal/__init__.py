"""The event log of a job, and its readings.

    writer.py     Journal: what the launcher records with; never waits for the disk
    event.py      one line; lines sorted into runs and restart cycles
    run_dir.py    where the log is kept, and which launcher writes there
    reader.py     all nodes' lines as one list of events; the runs of a folder
    incidents.py  what went wrong, which rank or node, and how long until the job trained again
    goodput.py    where every second went

Import from the modules; this package itself imports nothing.
"""
