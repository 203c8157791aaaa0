"""What people look at: readings of the straggler reports in a job's journal.

    kept.py          the reports of a run, in order
    text.py          as text
    legible.py       with names that a terminal does not act on
    score_table.py   of it, the worst and best ranks
    often.py         of it, who was named how often
    heat_map.py      rank × time as a table of bounded size
    plot.py          the picture of it

Import from the modules; this package itself imports nothing.
"""
