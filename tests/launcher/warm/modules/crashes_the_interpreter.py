"""Crashes the interpreter, unless it is a rank's."""

import os
import signal

if "RANK" not in os.environ:
    os.kill(os.getpid(), signal.SIGSEGV)


def check() -> None:
    pass
