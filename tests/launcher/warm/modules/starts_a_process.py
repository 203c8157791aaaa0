"""Starts a child when it is imported, and ends it at its own end."""

import atexit
import os
import subprocess

child = subprocess.Popen(["sleep", "600"])
atexit.register(child.kill)


def check() -> None:
    assert child.poll() is None
    with open(f"/proc/{child.pid}/stat") as file:
        assert int(file.read().rpartition(") ")[2].split()[1]) == os.getpid()
