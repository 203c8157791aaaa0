"""Makes a lock for its own children when it is imported: a semaphore in memory that every fork has, too."""

import multiprocessing
import os
import time

lock = multiprocessing.get_context("fork").Lock()


def _note(rank: int) -> str:
    return f"{os.environ['NOTES']}/locked-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{rank}"


def check() -> None:
    """Both ranks hold their own lock at the same time."""
    assert lock.acquire(timeout=5)
    with open(_note(int(os.environ["RANK"])), "w"):
        pass
    until = time.monotonic() + 10
    while not all(os.path.exists(_note(rank)) for rank in range(2)):
        assert time.monotonic() < until, "the other rank does not get its lock"
        time.sleep(0.002)
    lock.release()
