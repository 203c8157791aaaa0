"""Keeps a pair of connected sockets from its import on. Shared by two ranks, one would get the other's words."""

import os
import socket
import time

here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def check() -> None:
    own = str(os.getpid()).encode()
    for _ in range(50):
        there.send(own)
        time.sleep(0.001)
        assert here.recv(100) == own
    assert not here.get_inheritable()
