"""The command `holdfast`.

    main.py         the command line, and where results and errors go
    options.py      what the commands share

Each other module is one command: `add` is its part of the command line, `run` (or `text`) its result. Only autoresume
and slurm write to a run directory.
"""

from .main import console as console
from .main import main as main
