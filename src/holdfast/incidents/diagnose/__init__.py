"""A report on a job that still runs, because somebody asked: `holdfast diagnose`.

errors.py        what cannot be diagnosed, and why, for a person
lookup.py        what one process is: owner, command, environment
launchers.py     the launchers of this node: their boards, their run directories
ranks.py         ranks that another launcher has started, by their environment
job.py           what is looked at
jobs.py          from a process to the job that it belongs to
ours.py          the ranks of a launcher of ours, by its boards
others.py        those of another one, by their environments
run_dirs.py      from a run directory to the launcher that works in it
standing.py      whether everybody moves. Pure
diagnosis.py     evidence, verdict and report of a job
"""
