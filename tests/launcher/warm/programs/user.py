"""Imports the installed modules that its arguments name, and has each check itself. One line for each.

The line ends with `ahead` if the module was there at the script's start, else with `here`. Rank 1 fails in cycle 0.
"""

import importlib
import os
import signal
import sys
import time
import traceback

import before

RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(*words: object) -> None:
    os.write(1, f"rank {RANK} cycle {CYCLE} {' '.join(map(str, words))}\n".encode())


def meet(name: str) -> None:
    """All ranks of this cycle have come this far."""

    def note(rank: int) -> str:
        return f"{os.environ['NOTES']}/{name}-{CYCLE}-{rank}"

    with open(note(RANK), "w"):
        pass
    while not all(os.path.exists(note(rank)) for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.002)


def where(error: Exception) -> str:
    """The line that failed, and what it said."""
    return f"{traceback.extract_tb(error.__traceback__)[-1].line} ({error!r})"


def use(name: str) -> None:
    ahead = "ahead" if name in sys.modules else "here"
    try:
        module = importlib.import_module(name)
    except SystemExit as stop:
        return say(name, "ends with", stop)
    try:
        module.check()
    except Exception as error:
        return say(name, "FAULT", ahead, where(error))
    say(name, "is fine", ahead)


for name in sys.argv[1:]:
    try:
        getattr(before, name, lambda: None)()
    except AssertionError as error:
        say(name, "FAULT", "before its import", where(error))
meet("begun")
for name in sys.argv[1:]:
    use(name)
meet("done")
if CYCLE == 0:
    while RANK == 0:
        signal.pause()
    sys.exit(3)
