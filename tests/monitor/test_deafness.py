"""A monitor does not die of the training's signals, not even while its interpreter starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from holdfast.fault_tolerance.monitor import deafness

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
sys.stdin.readline()
from holdfast.fault_tolerance.monitor import deafness
deafness.ignore()
import signal
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), flush=True)
sys.stdin.readline()
"""


def test_signals_that_come_before_the_first_line_are_dropped() -> None:
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(deafness.__file__))))
    command = [sys.executable, "-I", "-S", "-c", CODE, source]
    with deafness.born_deaf():
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin and child.stdout
        for number in deafness.IGNORED:
            child.send_signal(number)
        child.stdin.write("go on\n")
        child.stdin.flush()
        assert child.stdout.readline() == "[]\n", "nothing stays blocked for what a monitor starts"
        for number in deafness.IGNORED:
            child.send_signal(number)
    assert child.returncode == 0


def test_the_starter_hears_again_and_loses_nothing() -> None:
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with deafness.born_deaf():
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            assert not heard
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
