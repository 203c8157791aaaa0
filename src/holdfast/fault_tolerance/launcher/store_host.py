"""The process that hosts the ranks' stores, so that the launcher itself need not import torch.

It is started cold by this file's path, or forked from a process that has torch. The launcher has bound the listening
sockets, so ranks may connect before a store is behind them: they wait in the socket's queue.

The launcher's messages on the control socket are one byte each:

- `OPEN` with a listening socket attached (SCM_RIGHTS): serve a store on it. The answer is `OPEN` as soon as torch is
  imported and ranks may meet in the store from then on. Where it cannot be served after all, the answer, or the next
  message, is `FAILED`, the port, a blank and the reason in one line.
- `CLOSE`: drop all stores but the newest. There is no answer.
- end of file: the launcher has ended, and so does this process.

What always holds: it is silent, catchable signals do not end it, and it ends with its launcher.
Does not cover: SIGSTOP and SIGKILL; the launcher handles these (:mod:`.rank_store`).
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python runs isolated: only the launcher's own path decides which torch this is.
    sys.path[:] = sys.argv[2:]

import ctypes
import fcntl
import os
import signal
import socket

OPEN, CLOSE, FAILED = b"o", b"c", b"e"
LONGEST = 4096
"""Bytes of an answer."""
PR_SET_PDEATHSIG = 1
UNSPECIFIED = {"0.0.0.0", "::"}
LOOPBACK = "127.0.0.1"  # at which torch's own client reaches a server that listens on all addresses


def serve(control: int) -> None:
    """Serve stores until the launcher closes its end of the socket `control`, a descriptor."""
    # Blocked, not ignored: nothing in torch's import can undo it, and its threads inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # Where the launcher's standard streams were closed, the socket has the number of one of them.
    control = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    stores: list[object] = []
    with socket.socket(fileno=control) as channel:
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
            if not message:
                return
            if message == CLOSE:
                del stores[:-1]
                continue
            (listener,) = descriptors
            with socket.socket(fileno=os.dup(listener)) as copy:
                host, port = copy.getsockname()[:2]
            try:
                import torch.distributed  # noqa: F401

                channel.send(OPEN)
                stores.append(_store(listener, host, port))
            except Exception as error:  # of torch's import, too: any end of it has to be reported
                why = f"{port} {' '.join(str(error).split())}".encode()
                channel.send(FAILED + why[: LONGEST - 2] + b"\n")


def _store(listener: int, host: str, port: int) -> object:
    """A store that serves on this listening socket; dropping it ends torch's server thread."""
    from torch.distributed import TCPStore

    return TCPStore(
        LOOPBACK if host in UNSPECIFIED else host,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=False,
        master_listen_fd=listener,
    )


if __name__ == "__main__":
    # If the launcher has ended before this call, the socket is at its end.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    serve(int(sys.argv[1]))
