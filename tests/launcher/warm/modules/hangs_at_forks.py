"""A process that forks after its import waits forever: for a lock that it has itself."""

import os
import threading

lock = threading.Lock()
lock.acquire()
os.register_at_fork(before=lock.acquire)


def check() -> None:
    assert lock.locked()
