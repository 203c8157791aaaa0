"""The thread that talks to the rendezvous store, against a real store: what a broken connection means."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Iterator

import pytest
from torch.distributed import TCPStore

from holdfast.fault_tolerance.launcher.nodes.reachable import Endpoint
from holdfast.fault_tolerance.launcher.nodes.records import FIRST, RESTART, HostLost, Moved
from holdfast.fault_tolerance.launcher.nodes.store_watch import StoreWatch
from tests.processes import CEILING

HOST = "127.0.0.1"


class Host:
    """A store, and a watch of it that has connections of its own."""

    def __init__(self) -> None:
        self.store: TCPStore | None = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.port = self.store.port
        self.news: queue.SimpleQueue[object] = queue.SimpleQueue()
        before = _sockets()
        self.watch = StoreWatch(
            lambda: TCPStore(HOST, self.port, is_master=False),
            Endpoint(HOST, self.port),
            "here",
            1,
            10.0,
            self.news.put,
        )
        self.connections = {fd for fd in _sockets() - before if _peer_port(fd) == self.port}
        self.watch.start()

    def cut(self) -> None:
        """Break the watch's connection as a firewall would."""
        for descriptor in self.connections:
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def next_news(self) -> object:
        """What the watch posts next."""
        return self.news.get(timeout=CEILING)


def _sockets() -> set[int]:
    links = {int(name): f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
    return {fd for fd, link in links.items() if os.path.islink(link) and "socket:" in os.readlink(link)}


def _peer_port(descriptor: int) -> int | None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return int(connection.getpeername()[1])
    except OSError:
        return None


@pytest.fixture(scope="module", autouse=True)
def _libuv_has_begun() -> None:
    """The first store of a process opens a pipe that libuv keeps for ever: that is nobody's leak."""
    TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.watch.stop()
    del made.watch, made.store  # each holds a connection


def test_a_connection_that_is_cut_is_no_lost_host(host: Host) -> None:
    assert host.connections
    assert host.store is not None
    host.cut()
    record = FIRST.next(RESTART, reason="a test", node="there", restarts=1)
    host.store.set("cycle/1", record.encode())
    assert host.next_news() == Moved(record)


def test_a_host_that_refuses_is_lost(host: Host) -> None:
    host.store = None  # ends torch's server thread
    assert host.next_news() == HostLost(f"nobody listens at {HOST}:{host.port} any more")


def test_silence_is_no_refusal() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
        assert Endpoint(HOST, port).refuses()
        listener.listen()
        assert not Endpoint(HOST, port).refuses()
