"""The one place where the launcher waits: signals, exits of processes, messages of the monitor and of other threads.

Signals are turned into events, so that none can break the launcher off half-way. Only before the first rank is
started, while the launcher waits for the job's store or for imports, a signal raises :class:`Interrupted` instead.
Does not cover: SIGKILL and SIGSTOP.
"""

from __future__ import annotations

import queue
import selectors
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from .control.messages import Signal


class Interrupted(Exception):
    """A signal arrived before the first rank was started."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Inbox:
    """Events in the order of their arrival; descriptors may be watched and are handed to their callbacks."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ, None)
        self._interruptible = False
        self._previous: dict[signal.Signals, Any] = {}

    def handle(self, numbers: Iterable[signal.Signals]) -> None:
        """Turn these signals, and no others, into events from now on; only in the main thread.

        SIGHUP stays ignored where it was: the launcher was started by nohup, to outlive its terminal.
        """
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        wanted = set(numbers)
        for number in self._previous.keys() - wanted:
            signal.signal(number, self._previous.pop(number))
        for number in wanted - self._previous.keys():
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._interruptible:
            self._posted.put(Signal(number))
        elif Signal(number).is_stop:
            self._interruptible = False
            raise Interrupted(signal.Signals(number))

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal raises :class:`Interrupted`; one that arrived shortly before does so at once.

        For waits before any rank is started, so a signal that would only be passed on to ranks is dropped.
        """
        self._interruptible = True  # before the queue is read: no signal falls between the two
        try:
            waiting = self.drain()
            for event in waiting:
                if isinstance(event, Signal) and event.is_stop:
                    raise Interrupted(signal.Signals(event.number))
            for event in waiting:
                if not isinstance(event, Signal):
                    self._posted.put(event)
            yield
        finally:
            self._interruptible = False

    def post(self, event: object) -> None:
        """Add an event, from any thread."""
        self._posted.put(event)
        self.wake()

    def wake(self) -> None:
        """Let :meth:`wait` return, from any thread."""
        with suppress(OSError):  # full: the reader is woken anyway; closed: the launcher has ended
            self._writer.send(b"\0")

    def watch(self, descriptor: int, callback: Callable[[], object | None]) -> None:
        """Call back when the descriptor is readable; what it returns becomes an event unless None."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def ignore(self, descriptor: int) -> None:
        """No longer watch this descriptor."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def drain(self) -> list[object]:
        """Everything that was posted, without waiting."""
        events: list[object] = []
        while True:
            try:
                events.append(self._posted.get_nowait())
            except queue.Empty:
                return events

    def wait(self, timeout: float) -> list[object]:
        """Events, after at most `timeout` seconds."""
        events = self.drain()
        for key, _ in self._selector.select(0 if events else max(0.0, timeout)):
            if key.data is None:  # only woken
                with suppress(BlockingIOError):
                    while self._reader.recv(4096):
                        pass
                continue
            event = key.data()
            if event is not None:
                events.append(event)
        return events + self.drain()

    def close(self, *, gives_back: bool = True) -> None:
        """Close the descriptors and give the signals back; else nothing follows from them until the process ends.

        They stay handled for that, without a moment in between.
        """
        signal.set_wakeup_fd(-1)
        if gives_back:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
        self._selector.close()
        self._reader.close()
        self._writer.close()
