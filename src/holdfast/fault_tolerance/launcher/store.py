"""The job's store as the launcher reaches it: operations in their order, and the newest values of the watched keys.

A job of several nodes has torch's TCPStore, reached by one thread (:class:`StoreClient`); a job of one node has a
dictionary (:class:`LocalStore`). The launcher never waits for either. An operation is repeated on a new connection
until it has an answer, so it may be carried out twice; the controller's operations allow that.

What always holds: a connection that breaks, or that silently swallows what is sent, is replaced. Only the controller
decides that the store's host is gone.
Does not cover: a thread whose call never returns. A new one takes its place, and it is left behind (it is a daemon).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .control.messages import Append, Cas, Put, StoreView, Tick
from .control.records import OF_A_CYCLE
from .rendezvous import Endpoint

if TYPE_CHECKING:
    from torch.distributed import Store as TorchStore

Operation = Cas | Put | Append
RETRY = 0.1
"""Seconds between two attempts to connect."""
REFUSED = 2.0
"""Seconds for which no process has listened at the store's address before that is reported."""
SWALLOWED = 5.0
"""Seconds without an answer after which a second connection is tried, the next time twice as long."""
ABSENT = "-"
"""Compared with itself, this reads a key at once; torch's `get` waits for a key that does not exist."""


class StoreGone(Exception):
    """The store did not answer in time, or the launcher ends."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """An operation in the queue, or a key that another thread reads; `answer` gets the standing value."""

    operation: Operation | str
    answer: deque[str] | None = None


class LocalStore:
    """The store of a job of one node. Every operation is carried out at once."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._delivered: dict[str, str] = {}
        self._watched: set[str] = set()
        self._views: deque[StoreView] = deque()

    def carry_out(self, operation: Operation) -> None:
        """Carry out one operation; the standing value of a `Cas` is a view."""
        key = operation.key
        match operation:
            case Cas(old=old, new=new):
                if self._values.get(key, "") == old:
                    self._values[key] = new
                    self._drop_before(key)
                self._deliver(key)
            case Put(value=value):
                self._values[key] = value
            case Append(line=line):
                self._values[key] = self._values.get(key, "") + line + "\n"

    def _drop_before(self, record: str) -> None:
        """With the record of a cycle, drop the keys of all cycles but this one and the one before. Memberships stay:
        later cycles refer to them."""
        kind, _, cycle = record.partition("/")
        if kind != "cycle":
            return
        numbers = {key: key.partition("/")[2] for key in self._values if key.partition("/")[0] in OF_A_CYCLE}
        for key, number in numbers.items():
            if number.isdecimal() and int(number) < int(cycle) - 1:
                del self._values[key]
                self._delivered.pop(key, None)

    def watch(self, keys: Mapping[str, float]) -> None:
        """From now on the values of these keys are views."""
        for key in keys.keys() - self._watched:
            self._delivered.pop(key, None)
        self._watched = set(keys)

    def views(self) -> list[StoreView]:
        """The values of watched keys that are new."""
        for key in self._watched:
            if self._delivered.get(key) != self._values.get(key, ""):
                self._deliver(key)
        found = list(self._views)
        self._views.clear()
        return found

    def _deliver(self, key: str) -> None:
        self._delivered[key] = self._values.get(key, "")
        self._views.append(StoreView(key, self._delivered[key]))

    def contact(self) -> Tick:
        """It always answers."""
        return Tick()

    def drain(self, seconds: float) -> None:
        """All operations are carried out already."""

    def close(self) -> None:
        """It has no connection."""


class StoreClient:
    """The store of a job of several nodes, reached by one thread.

    Args:
        store: A connection to it, or the server itself.
        wake: Called from the thread when there are new views.
    """

    def __init__(
        self,
        store: TorchStore,
        connect: Callable[[], TorchStore],
        endpoint: Endpoint,
        wake: Callable[[], object],
    ) -> None:
        self._connect, self._endpoint, self._wake = connect, endpoint, wake
        self._changed = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._watched: dict[str, float] = {}
        self._due: dict[str, float] = {}  # when each watched key is read next
        self._delivered: dict[str, str] = {}
        self._views: deque[StoreView] = deque()
        self._closed = False
        self._answered = time.monotonic()
        self._refused = ""
        self._generation = 0  # of the thread that serves; a thread of an earlier one ends
        self._replaced = self._answered
        self._start(store)

    def _start(self, store: TorchStore | None) -> None:
        name = f"holdfast-store-{self._generation}"
        threading.Thread(target=self._run, args=(store, self._generation), name=name, daemon=True).start()

    # -- for the launcher -------------------------------------------------------------------------------------

    def carry_out(self, operation: Operation) -> None:
        """Add one operation to the queue. Of several waiting values for one key only the newest is written."""
        with self._changed:
            if isinstance(operation, Put):
                first, later = list(self._queue)[:1], list(self._queue)[1:]  # the first may be under way
                self._queue = deque([*first, *(each for each in later if not _writes(each, operation.key))])
            self._queue.append(_Waiting(operation))
            self._changed.notify_all()

    def watch(self, keys: Mapping[str, float]) -> None:
        """From now on read these keys, each once per its number of seconds."""
        with self._changed:
            if keys == self._watched:
                return
            now = time.monotonic()
            for key, every in keys.items():
                self._due[key] = min(self._due[key], now + every) if key in self._watched else now
            for key in self._watched.keys() - keys.keys():
                del self._due[key]
                self._delivered.pop(key, None)
            self._watched = dict(keys)
            self._changed.notify_all()

    def views(self) -> list[StoreView]:
        """The values of watched keys that are new, and the standing values after each `Cas`."""
        with self._changed:
            found = list(self._views)
            self._views.clear()
        return found

    def contact(self) -> Tick:
        """A tick that has how well the store answers. A connection that swallows operations is replaced here."""
        now = time.monotonic()
        ago = now - self._answered
        with self._changed:
            if ago > SWALLOWED and now - self._replaced > max(SWALLOWED, ago / 2) and not self._refused:
                self._replaced = now
                self._generation += 1
                try:
                    self._start(None)
                except RuntimeError:  # no thread can be started: the connection stays
                    self._generation -= 1
        return Tick(ago, self._refused)

    def ask(self, operation: Operation | str, seconds: float) -> str:
        """Carry out an operation, or read a key, and wait for it; for other threads than the launcher's.

        Raises:
            StoreGone: There was no answer within `seconds`.
        """
        answer: deque[str] = deque()
        until = time.monotonic() + seconds
        with self._changed:
            waiting = _Waiting(operation, answer)
            self._queue.append(waiting)
            self._changed.notify_all()
            while not answer:
                left = until - time.monotonic()
                if left <= 0 or self._closed or self._refused:
                    if self._queue and self._queue[0] is not waiting:  # that one may be under way
                        self._queue.remove(waiting)
                    raise StoreGone(self._refused or f"no answer within {seconds:g} s")
                self._changed.wait(left)
        return answer[0]

    def drain(self, seconds: float) -> None:
        """Wait until all operations are carried out, at most so long, or until the store refuses."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._queue and not self._refused and (left := until - time.monotonic()) > 0:
                self._changed.wait(min(left, RETRY))

    def close(self) -> None:
        """End the thread; one that is blocked in the store is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self, store: TorchStore | None, generation: int) -> None:
        while True:
            if store is None:
                store = self._connected(generation)
            if store is None:
                return
            work = self._next(generation)
            if work is None:
                return
            try:
                self._do(store, work, generation)
            except Exception:  # torch's errors of stores are RuntimeErrors; others would end this thread
                store = None

    def _is_over(self, generation: int) -> bool:
        return self._closed or generation != self._generation

    def _connected(self, generation: int) -> TorchStore | None:
        """A new connection, as soon as there can be one; None where this thread is not needed any more."""
        since: float | None = None
        while not self._is_over(generation):
            if self._endpoint.refuses():
                now = time.monotonic()
                since = now if since is None else since
                if now - since >= REFUSED and not self._is_over(generation):
                    self._refused = f"no process listens at {self._endpoint} any more"
            else:
                since = None
                with suppress(RuntimeError):
                    return self._connect()
            with self._changed:
                self._changed.wait(RETRY)
        return None

    def _next(self, generation: int) -> _Waiting | list[str] | None:
        """The next operation, or the keys to be read now; waits for either. None: this thread is not needed."""
        with self._changed:
            while not self._is_over(generation):
                now = time.monotonic()
                if self._queue:
                    return self._queue[0]
                if due := [key for key, at in self._due.items() if at <= now]:
                    self._due.update((key, now + self._watched[key]) for key in due)
                    return due
                self._changed.wait(min(self._due.values(), default=now + 1.0) - now)
        return None

    def _do(self, store: TorchStore, work: _Waiting | list[str], generation: int) -> None:
        """Carry it out, and take the answer over unless another thread serves by now."""
        operation = work if isinstance(work, _Waiting) else None
        standing = _carry_out(store, operation.operation) if operation else ""
        values = _read(store, work, self._delivered) if isinstance(work, list) else {}
        with self._changed:
            if self._is_over(generation):
                return
            self._answered, self._refused = time.monotonic(), ""
            for key, value in values.items():
                if key in self._watched and self._delivered.get(key) != value:
                    self._deliver(key, value)
            if operation is not None:
                self._queue.remove(operation)
                if operation.answer is not None:
                    operation.answer.append(standing)
                elif isinstance(operation.operation, Cas):
                    self._deliver(operation.operation.key, standing)
            self._changed.notify_all()
            has_views = bool(self._views)
        if has_views:
            self._wake()

    def _deliver(self, key: str, value: str) -> None:
        self._delivered[key] = value
        self._views.append(StoreView(key, value))


def _writes(waiting: _Waiting, key: str) -> bool:
    """Whether it only writes a value of this key."""
    return isinstance(waiting.operation, Put) and waiting.operation.key == key and waiting.answer is None


def _read(store: TorchStore, keys: list[str], known: Mapping[str, str]) -> dict[str, str]:
    """The values of these keys, "" for one that does not exist; those that exist are read at once."""
    present = [key for key in keys if known.get(key)]
    found = {key: _read_one(store, key) for key in keys if key not in present or len(present) == 1}
    if len(present) > 1:
        for key, value in zip(present, store.multi_get(present), strict=True):
            found[key] = value.decode(errors="replace")
    return found


def _read_one(store: TorchStore, key: str) -> str:
    value = store.compare_set(key, ABSENT, ABSENT).decode(errors="replace")
    return "" if value == ABSENT else value


def _carry_out(store: TorchStore, operation: Operation | str) -> str:
    """The standing value of a `Cas`, or of a key that is read; else ""."""
    match operation:
        case Cas(key, old, new):
            return store.compare_set(key, old, new).decode(errors="replace")
        case Put(key, value):
            store.set(key, value)
        case Append(key, line):
            store.append(key, line + "\n")  # type: ignore[attr-defined]  # missing in torch's stubs
        case str(key):
            return _read_one(store, key)
    return ""
