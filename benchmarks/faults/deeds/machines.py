"""Other machines that say nothing: a port of the corpus' own process stands for them."""

from __future__ import annotations

import socket
import urllib.request
from datetime import timedelta

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point


def _ask(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET\n")
        connection.recv(1)


@deed("socket")
def _(point: Point) -> None:
    _ask(point.port)


@deed("http")
def _(point: Point) -> None:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"http://127.0.0.1:{point.port}/weights"
    )


@deed("dataset_server", place="data")
def _(point: Point, path: str) -> None:
    _ask(point.port)


@deed("connect")
def _(point: Point) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        # What the backlog takes; the next one's first packet is not answered.
        kept = []
        for _ in range(4):
            kept.append(socket.socket())
            kept[-1].setblocking(False)
            kept[-1].connect_ex(deaf.getsockname())
        socket.create_connection(deaf.getsockname())


@deed("store")
def _(point: Point) -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(hours=1))
    store.get("vocabulary")
