"""The command `holdfast`: readings of what a job left behind.

    main.py         the command line, and where results and errors go
    doctor.py       holdfast doctor
    incidents.py    holdfast incidents
    stragglers.py   holdfast stragglers

Each command is a module with `add` (its part of the command line) and `text` (its result). What always holds:
nothing here writes to a run directory.
"""

from .main import console as console
from .main import main as main
