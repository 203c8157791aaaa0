"""Signals that ask a training to stop: their handlers in the ranks, and data loader workers that outlive them.

A scheduler signals every process of a job; a worker that dies of it ends the rank's next batch with an error.

What always holds: a handler only notes the signal's number and passes it on; it logs nothing, as what it interrupts may
hold the log's lock; the default action is not in force before `restore`; a forked child takes the signal as it would
without us, unless it is to be a data loader's worker. A worker still runs the user's `worker_init_fn`; workers left at
the end of the process are ended, and no other child.

Does not cover: threads other than the main one, in which Python allows no handlers. A signal between a worker's start
and its `worker_init_fn`: a few milliseconds when it is forked, its imports (seconds) when it is spawned. Workers that a
loader of another kind starts.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

STOPS = (int(signal.SIGTERM), int(signal.SIGHUP))
"""Of a scheduler, and of a terminal that is closed: ft_launcher forwards both, and they ask any training to stop."""

_REFUSED: dict[int, str] = {
    signal.SIGKILL: "it cannot be caught",
    signal.SIGSTOP: "it cannot be caught",
    signal.SIGCHLD: "it says that a child ended",
    **dict.fromkeys((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL), "it means a crash"),
}


def parse_signal(sig: Any) -> int:
    """The number of a signal given as number, `signal.Signals` or name (`SIGUSR1`, `usr1`); None is SIGTERM.

    Raises ValueError for what is no signal, or none that can ask a training to stop.
    """
    found = signal.SIGTERM if sig is None else _find(sig)
    if found is None:
        raise ValueError(
            f"sig={sig!r}: no signal; allowed is a number or a name of one, for example signal.SIGTERM or 'SIGUSR1'"
        )
    if signal.SIGRTMIN <= found <= signal.SIGRTMAX:
        raise ValueError(
            f"sig={sig!r}: a real-time signal is not possible here: ft_launcher has no name by which to pass it on"
        )
    if found in _REFUSED:
        raise ValueError(f"sig={sig!r}: {signal.Signals(found).name} asks for no stop: {_REFUSED[found]}")
    return int(found)


def _find(sig: Any) -> int | None:
    if isinstance(sig, str):
        name = sig.strip().upper()
        for spelling in (name, f"SIG{name}"):
            if spelling in signal.Signals.__members__:
                return signal.Signals[spelling]
        return None
    if isinstance(sig, int) and not isinstance(sig, bool) and sig in signal.valid_signals():
        return int(sig)
    return None


class Notices:
    """The handlers of one training, for these signals. `number` is the first signal that came, 0 before.

    `tell` is called in the handler with each signal's number; it must be quick, and safe there.
    """

    def __init__(self, signals: set[int]) -> None:
        self.number = 0
        self.tell: Callable[[int], None] | None = None
        self._signals = sorted(signals)
        self._before: dict[int, Any] = {}
        self._over = False
        self._pid = os.getpid()

    def install(self) -> bool:
        """Be in force for all its signals; to be repeated whenever another may have taken a signal over.

        SIGHUP stays ignored where it is: the program was started by nohup, to outlive its terminal. Returns False, and
        does nothing, in a thread that may not.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in self._signals:
            found = signal.getsignal(number)
            if number == signal.SIGHUP and found == signal.SIG_IGN:
                continue
            if found != self._handle:
                self._before.setdefault(number, found)
                signal.signal(number, self._handle)
        return True

    def restore(self) -> None:
        """Put back what was there before; a handler that another has set meanwhile stays. May be called twice."""
        self._over = True
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, _still_valid(before, number))

    def leave_in_force(self) -> None:
        """This process ends: the signals shall not end it sooner. The handlers of a later training replace these."""
        self._over = True

    def raise_again(self) -> None:
        """After `restore`: the signal that came, if one did, does what it would have done without us."""
        if self.number:
            signal.raise_signal(self.number)

    def _handle(self, number: int, _frame: object) -> None:
        if os.getpid() != self._pid:
            _in_child(number, self._before.get(number))
            return
        self.number = self.number or number
        if self.tell is not None:
            self.tell(number)


def _still_valid(handler: Any, number: int) -> Any:
    """What a signal had before, without handlers of trainings that are over. None is one that Python did not set."""
    while isinstance(notices := getattr(handler, "__self__", None), Notices) and notices._over:
        handler = notices._before.get(number, signal.SIG_DFL)
    return signal.SIG_DFL if handler is None else handler


def _in_child(number: int, before: Any) -> None:
    """In a forked child, which has inherited the handler."""
    target = getattr(multiprocessing.current_process(), "_target", None)
    if getattr(target, "__module__", "") == "torch.utils.data._utils.worker":
        return  # for a data loader, and does not yet ignore the signals by itself
    signal.signal(number, _still_valid(before, number))
    os.kill(os.getpid(), number)


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
        # torch's workers take Ctrl-C for their end, and leave no temporary folder behind.
        with suppress(OSError):
            os.kill(child_pid, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    for child in left.values():
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join(GRACE)
