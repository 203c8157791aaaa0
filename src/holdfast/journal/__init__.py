"""The event log of a job, and its readings.

    writer.py         Journal: what the launcher records with; never waits for the disk
    event.py          one line
    run_dir.py        where it is kept
    claim.py          which of two launchers keeps it there
    reader.py         all nodes' lines as one list of events
    cycles.py         events sorted into runs and restart cycles
    incident_list.py  what went wrong, who, and how long until the job went on
    run_list.py       the runs of a folder
    table.py          both as text

Import from the modules; this package itself imports nothing.
"""
