"""Signals that ask a training to stop: their handlers, until the training is over.

What always holds: a handler only notes the signal's number and passes it on; it logs nothing, as what it interrupts may
hold the log's lock; a second signal changes nothing; the default action is not in force before `restore`; a forked
child takes the signal as it would without us, unless it is to be a data loader's worker.

Does not cover: threads other than the main one, in which Python allows no handlers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

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

        Returns False, and does nothing, in a thread that may not.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in self._signals:
            found = signal.getsignal(number)
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
    if is_future_worker():
        return
    signal.signal(number, _still_valid(before, number))
    os.kill(os.getpid(), number)


def is_future_worker() -> bool:
    """Whether this is a process for a data loader, which does not yet ignore the signals by itself."""
    target = getattr(multiprocessing.current_process(), "_target", None)
    return getattr(target, "__module__", "") == "torch.utils.data._utils.worker"
