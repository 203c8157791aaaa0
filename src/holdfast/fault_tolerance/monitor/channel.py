"""Messages between the monitor and the launcher: one JSON object per datagram, never blocking the sender.

A message that does not fit into the socket's buffer is dropped: what it told stands on the boards, and what the
monitor does never waits for the launcher.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

LARGEST = 1 << 16
LOOK = {"do": "look"}  # the launcher's only request: look at the boards now


class Channel:
    """One end of a SOCK_SEQPACKET pair."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)

    def fileno(self) -> int:
        """For poll and selectors."""
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
        """Everything that has arrived; ends quietly when nothing more is there or the other end is gone."""
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
        """Close this end."""
        self._socket.close()
