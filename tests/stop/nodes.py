"""Nodes and ranks within one process: real pages and a real store; threads are the launchers, and the ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore

from holdfast.fault_tolerance.launcher.agent.agreement import Agreement
from holdfast.fault_tolerance.launcher.nodes.reachable import Endpoint
from holdfast.fault_tolerance.launcher.nodes.stop_notes import MemoryNotes, StoreNotes
from holdfast.fault_tolerance.launcher.ranks.stop_pages import StopPages
from holdfast.fault_tolerance.stop import StopPoint, position
from holdfast.fault_tolerance.stop.page import PageFile, page_path

HOST = "127.0.0.1"


class Here:
    """A node with two ranks: its pages, and the ranks' points."""

    def __init__(self, folder: Path, first_rank: int) -> None:
        self.pages = StopPages()
        self._boards = {local: str(folder / f"{first_rank + local}.board") for local in range(2)}
        self.pages.open(self._boards)
        for local in range(2):
            self.pages.admit(local, first_rank + local)
        self.points = [StopPoint(PageFile(page_path(board), held=True)) for board in self._boards.values()]
        self.records: list[tuple[str, dict[str, Any]]] = []
        self._agreements: list[Agreement] = []

    def begin(self) -> None:
        for point in self.points:
            point.begin()

    def agree(self, notes: MemoryNotes | StoreNotes, node: int = 0, world: int = 1, **more: Any) -> Agreement:
        def record(kind: str, **fields: Any) -> None:
            self.records.append((kind, fields))

        agreement = Agreement(self.pages, notes, node, world, lambda local: False, record, **more)
        self._agreements.append(agreement)
        agreement.start()
        return agreement

    def close(self) -> None:
        for agreement in self._agreements:
            agreement.close()
            assert not agreement.is_alive()
        for point in self.points:
            point.end()
        self.pages.close()


class Trains:
    """A rank that comes from batch to batch until it stops or is told to pause."""

    def __init__(self, point: StopPoint) -> None:
        self.batch, self.paused = 0, threading.Event()
        self._point, self._ended = point, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.002):
            if not self.paused.is_set():
                self.batch += 1
                if self._point.passes(position(self.batch)):
                    return

    def stopped(self) -> int:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.batch

    def end(self) -> int:
        self._ended.set()
        return self.stopped()


class Meeting:
    """The rendezvous store, and what connects to it."""

    def __init__(self) -> None:
        self.store: TCPStore | None = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.port = self.store.port
        self._notes: list[StoreNotes] = []

    def notes(self) -> StoreNotes:
        port = self.port
        connect = lambda: PrefixStore("job", TCPStore(HOST, port, is_master=False))  # noqa: E731
        self._notes.append(StoreNotes(connect, Endpoint(HOST, port), 0))
        return self._notes[-1]

    def own(self) -> PrefixStore:
        assert self.store is not None
        return PrefixStore("job", self.store)

    def close(self) -> None:
        for notes in self._notes:
            notes.close()
        self.store = None


Make = Callable[[], Here]
