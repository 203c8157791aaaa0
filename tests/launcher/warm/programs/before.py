"""What a script finds before it imports one of `modules`, whose import changes it. Named as these are."""

import locale
import multiprocessing
import os
import resource
import signal
import sys


def changes_limits() -> None:
    with open("/proc/self/status") as file:
        assert "Umask:\t0077\n" not in file.read()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 777


def changes_the_folder() -> None:
    assert os.getcwd() == os.environ["STARTED_IN"], os.getcwd()


def changes_the_locale() -> None:
    assert locale.setlocale(locale.LC_NUMERIC) == "C"


def chooses_a_start_method() -> None:
    assert multiprocessing.get_start_method(allow_none=True) is None


def handles_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR2):
        assert signal.getsignal(number) == signal.SIG_DFL, number


def wraps_standard_output() -> None:
    assert sys.stdout is sys.__stdout__


def hooks_exceptions() -> None:
    assert sys.excepthook.__module__ == "sitecustomize", sys.excepthook


def reaps_children() -> None:
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
