"""A process that is forked after its import waits forever."""

import os
import time

parent = os.getpid()


def _wait() -> None:
    while True:
        time.sleep(100)


os.register_at_fork(after_in_child=_wait)


def check() -> None:
    assert os.getpid() == parent
