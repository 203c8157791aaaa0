"""Data loader workers that outlive the signals which ask the training to stop.

A scheduler signals every process of a job. A worker that dies of it ends the rank's next batch with an error, before
the rank has come to the place where it saves. What always holds: a worker still runs the user's `worker_init_fn`;
programs that a worker starts are not affected; loaders that are no torch `DataLoader` are left alone; workers left at
the end of the process are ended, as torch would have, and no other child.

Does not cover: a signal between a worker's start and its `worker_init_fn`: a few milliseconds when it is forked, its
imports (seconds) when it is spawned. Workers that a loader of another kind starts.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

GRACE = 1.0
"""Seconds for workers to end at the end of the process, before SIGKILL."""

MARK = "holdfast-staying-worker"
"""Of an open descriptor that such a worker has."""

InitFn = Callable[[int], Any]


class Staying:
    """A `worker_init_fn` that ignores these signals, then calls another. Can be pickled if the other can."""

    def __init__(self, signals: set[int], then: InitFn | None) -> None:
        self.signals = sorted(signals)
        self.then = then

    def __call__(self, worker_id: int) -> None:
        if _mark():
            for number in self.signals:
                signal.signal(number, _ignore)  # not SIG_IGN, which the programs that it starts would inherit
        if self.then is not None:
            self.then(worker_id)


def _ignore(_number: int, _frame: object) -> None:
    """For the worker that is to stay."""


class StayingWorkers:
    """The loaders of one training whose workers stay."""

    def __init__(self, signals: set[int]) -> None:
        self._signals = signals
        self._changed: list[tuple[weakref.ref[Any], Staying]] = []

    def of(self, loader: Any, otherwise: InitFn | None = None) -> None:
        """Before the loader's iterator is made. `otherwise`: its `worker_init_fn` where it has none."""
        from torch.utils.data import DataLoader

        if not isinstance(loader, DataLoader) or loader.num_workers == 0:
            return
        then = loader.worker_init_fn
        if isinstance(then, Staying):
            if set(then.signals) >= self._signals:
                return
        elif then is None:
            then = otherwise
        staying = Staying(self._signals, then)
        loader.worker_init_fn = staying
        self._changed.append((weakref.ref(loader), staying))
        _end_workers_at_exit()

    def undo(self) -> None:
        """Leave the loaders as they were. Workers that run stay as they are. May be called twice."""
        while self._changed:
            reference, staying = self._changed.pop()
            loader = reference()
            if loader is not None and loader.worker_init_fn is staying:
                loader.worker_init_fn = staying.then


def _mark() -> bool:
    """Let the process that started this worker know that it is one which stays; False: it cannot be reached.

    By an open descriptor with a name: a process's own name may be changed by the user's function.
    """
    try:
        os.memfd_create(MARK)
    except (AttributeError, OSError):
        return False
    return True


def _is_marked(pid: int) -> bool:
    with suppress(OSError):
        folder = f"/proc/{pid}/fd"
        for name in os.listdir(folder):
            with suppress(OSError):
                if os.readlink(f"{folder}/{name}").startswith(f"/memfd:{MARK}"):
                    return True
    return False


@functools.cache
def _end_workers_at_exit() -> None:
    # Called before what multiprocessing registered, which would wait for them forever.
    import multiprocessing.util  # noqa: F401  registers

    atexit.register(_end_workers, os.getpid())


def _end_workers(pid: int) -> None:
    """End the workers that are left and stay; multiprocessing would only ask them to, and wait."""
    if os.getpid() != pid:
        return
    children = {child.pid: child for child in multiprocessing.active_children() if child.pid}
    left = {child_pid: child for child_pid, child in children.items() if _is_marked(child_pid)}
    if not left:
        return
    # torch's handler raises for each worker that is killed while its loader's iterator lives, here between two of them.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child_pid in left:
        with suppress(
            OSError
        ):  # torch's workers take Ctrl-C for their end, and leave no temporary folder behind
            os.kill(child_pid, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    for child in left.values():
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join(GRACE)
