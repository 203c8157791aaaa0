"""Messages between the launcher, its zygotes and their standbys: JSON objects with a length before them, and
descriptors. Also the list of modules to import, a file in memory in which the zygote notes where it is.

Also used by the launcher. Does not cover: another process on the other side; both ends are made by the launcher.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any

NOTE = 256
"""Bytes at the start of the list in which the zygote notes the module that it is importing."""
ALL = "*"
"""Noted while what it has imported is checked as a whole."""
MOST = 250
"""Descriptors in one message; the kernel's limit is 253."""


def send(to: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message whole. Raises OSError when the other side is gone, or does not read for the socket's timeout.

    By one call, so that a process that is stopped at any moment has sent all of a short message, or nothing.
    """
    body = json.dumps(message).encode()
    whole = len(body).to_bytes(4, "little") + body
    sent = socket.send_fds(to, [whole], list(descriptors))
    rest = whole[sent:]
    if rest:  # not even an empty rest can be sent once a receiver that has it all has answered and ended
        to.sendall(rest)


def receive(source: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors; None when the other side is gone. Raises OSError when the rest of a
    message does not come within the socket's timeout."""
    head, descriptors, _, _ = socket.recv_fds(source, 4, MOST)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    head += _exactly(source, 4 - len(head))
    body = _exactly(source, int.from_bytes(head, "little")) if len(head) == 4 else b""
    if len(head) < 4 or len(body) < int.from_bytes(head, "little"):
        return None
    message: dict[str, Any] = json.loads(body)
    return message, descriptors


def write_list(entries: Iterable[Sequence[str | None]]) -> int:
    """A file in memory with these modules; the list may be longer than what a socket takes at once."""
    file = os.memfd_create("modules")
    os.pwrite(file, bytes(NOTE), 0)
    with open(file, "wb", closefd=False) as opened:
        opened.seek(NOTE)
        opened.write(json.dumps(list(entries)).encode())
    return file


def read_list(file: int) -> list[list[str | None]]:
    """What :func:`write_list` has written."""
    with open(file, "rb", closefd=False) as opened:
        opened.seek(NOTE)
        entries: list[list[str | None]] = json.loads(opened.read())
    return entries


def note(file: int, name: str) -> None:
    """Note which module is being imported ('' for none)."""
    os.pwrite(file, name.encode()[:NOTE].ljust(NOTE, b"\0"), 0)


def noted(file: int) -> str:
    """What was noted last."""
    return os.pread(file, NOTE, 0).rstrip(b"\0").decode(errors="replace")


def close(descriptors: Iterable[int]) -> None:
    """Close them all."""
    for descriptor in descriptors:
        os.close(descriptor)


def _exactly(source: socket.socket, count: int) -> bytes:
    """So many bytes, or what came before the end."""
    parts = []
    while count and (part := source.recv(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
