"""How the launcher and its monitor communicate: a page of shared memory, and messages that never block the sender.

On the page the launcher writes epoch, cycle and phase; the monitor in charge writes the rest, which is all that its
successor needs. Every field is one aligned 8-byte store. A monitor whose epoch is not the page's is superseded and
must not act any more.

A message is one JSON object per datagram. One that does not fit into the socket's buffer is dropped: its facts are on
the boards, and the monitor never waits for the launcher.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..board.mapped import Page
from .deadlines import KEPT, Suspensions

LARGEST = 1 << 16
SCAN = {"do": "scan"}  # the launcher's only request: scan the boards now

FILE = "control"

# Words of the page. The suspensions are a ring of `KEPT` pairs (start, end).
_, _EPOCH, _CYCLE, _PHASE, _TICK, _SCANNED, _NEXT_SCAN, _COUNT, _SPANS = range(9)

IDLE, RUNNING, STOPPING = 0, 1, 2  # phases: verdicts are given in RUNNING only


@dataclass(frozen=True)
class Settings:
    """The monitor's argument; seconds throughout."""

    directory: str  # the launcher's, with the control page and a folder for each cycle
    check_interval: float  # longest time between two scans
    termination: int  # the first signal to a hung rank; SIGKILL follows after `grace`
    grace: float
    early_detection: bool = False
    warm_up: int = 0  # steps of a rank that may take longer than others
    launcher_pid: int = 0
    launcher_start: int = 0
    channel: int = -1  # the descriptor of its end
    epoch: int = 0  # of this monitor; another number on the control page means that it is superseded


class ControlPage(Page):
    """Access to the page; `create` in the launcher, the constructor in the monitor."""

    MAGIC = 0x31304C5254434648  # "HFCTRL01"
    KIND = "control page"

    def __init__(self, directory: str) -> None:
        super().__init__(os.path.join(directory, FILE))

    @classmethod
    def create(cls, directory: str) -> ControlPage:
        """A fresh page, allocated in full so that no later store can fail."""
        return super().create(os.path.join(directory, FILE))

    @property
    def epoch(self) -> int:
        """Number of the monitor in charge."""
        return self.words[_EPOCH]

    @epoch.setter
    def epoch(self, value: int) -> None:
        self.words[_EPOCH] = value

    @property
    def cycle(self) -> int:
        """The restart cycle whose boards are to be watched."""
        return self.words[_CYCLE]

    @property
    def phase(self) -> int:
        return self.words[_PHASE]

    def enter(self, phase: int, cycle: int) -> None:
        """Set cycle and phase; the phase last, so that a cycle is never watched before it has boards."""
        self.words[_PHASE] = IDLE
        self.words[_CYCLE] = cycle
        self.words[_PHASE] = phase

    @property
    def tick(self) -> int:
        """Rises with every scan of the monitor in charge."""
        return self.words[_TICK]

    @property
    def last_scan(self) -> tuple[int, int]:
        """When a monitor last scanned the boards, and the planned next scan (monotonic nanoseconds; 0: never)."""
        return self.words[_SCANNED], self.words[_NEXT_SCAN]

    def record_scan(self, scanned_ns: int, next_ns: int) -> None:
        """The monitor has scanned the boards, and plans its next scan."""
        self.words[_SCANNED] = scanned_ns
        self.words[_NEXT_SCAN] = next_ns
        self.words[_TICK] += 1

    @property
    def suspensions(self) -> Suspensions:
        """The suspensions of this node, as all monitors of this job have noticed them."""
        count = self.words[_COUNT]
        at = [_SPANS + 2 * (number % KEPT) for number in range(max(0, count - KEPT), count)]
        return Suspensions(tuple((self.words[word], self.words[word + 1]) for word in at))

    def add_suspension(self, start_ns: int, end_ns: int) -> None:
        """One more; the count last, so that a monitor which dies in between has added none.

        One that begins where the last began is the same, noticed again by a successor: it is not counted twice.
        """
        count = self.words[_COUNT]
        last = _SPANS + 2 * ((count - 1) % KEPT)
        if count and self.words[last] == start_ns:
            self.words[last + 1] = end_ns
            return
        at = _SPANS + 2 * (count % KEPT)
        self.words[at], self.words[at + 1] = start_ns, end_ns
        self.words[_COUNT] = count + 1


class Channel:
    """One end of a SOCK_SEQPACKET pair."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """Send or drop; False when it was dropped or the other end is gone. One too large goes without its lists."""
        packet = json.dumps(message).encode()
        if len(packet) > LARGEST:
            short = {name: value for name, value in message.items() if not isinstance(value, list)}
            packet = json.dumps(short).encode()
        try:
            self._socket.send(packet)
        except OSError:
            return False
        return True

    def receive(self) -> Iterator[dict[str, Any]]:
        """Every message that has arrived; ends without an error when the other end is gone."""
        while True:
            try:
                packet = self._socket.recv(LARGEST)
            except OSError:
                return
            if not packet:
                return
            try:
                yield json.loads(packet)
            except ValueError:
                continue

    def close(self) -> None:
        self._socket.close()
