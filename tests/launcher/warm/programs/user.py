"""Imports the installed modules that its arguments name, and has each check itself. One line for each.

The line ends with `ahead` if the module was there at the script's start, else with `here`. Rank 1 fails in cycle 0.
"""

import importlib
import locale
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback

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


class Before:
    """What a script finds before it imports one of `modules`, whose import changes it. Named as these are."""

    @staticmethod
    def changes_limits() -> None:
        with open("/proc/self/status") as file:
            assert "Umask:\t0077\n" not in file.read()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 777

    @staticmethod
    def changes_the_folder() -> None:
        assert os.getcwd() == os.environ["STARTED_IN"], os.getcwd()

    @staticmethod
    def changes_the_locale() -> None:
        assert locale.setlocale(locale.LC_NUMERIC) == "C"

    @staticmethod
    def chooses_a_start_method() -> None:
        assert multiprocessing.get_start_method(allow_none=True) is None

    @staticmethod
    def handles_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGUSR2):
            assert signal.getsignal(number) == signal.SIG_DFL, number

    @staticmethod
    def wraps_standard_output() -> None:
        assert sys.stdout is sys.__stdout__

    @staticmethod
    def hooks_exceptions() -> None:
        assert sys.excepthook.__module__ == "sitecustomize", sys.excepthook

    @staticmethod
    def reaps_children() -> None:
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


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
        getattr(Before, name, lambda: None)()
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
