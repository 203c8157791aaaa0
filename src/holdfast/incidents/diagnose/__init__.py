"""`holdfast diagnose`: a report on a job that still runs, because a person asked.

find_job.py       from a process or a run directory to the job's ranks on this node
process_table.py  all processes of this node, their command lines and environments
diagnose.py       evidence, verdict and report of these
"""
