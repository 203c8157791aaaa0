"""The launcher's way to the job's store: order of operations, watched keys, connections that break."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from holdfast.fault_tolerance.launcher.control.messages import Append, Cas, Put, StoreView
from holdfast.fault_tolerance.launcher.rendezvous import Endpoint, register
from holdfast.fault_tolerance.launcher.store import StoreClient, StoreGone
from tests.processes import Spawned, Spawner, wait_until

HOST = "127.0.0.1"
SERVER = """
import sys, time
from torch.distributed import TCPStore
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("port", server.port, flush=True)
time.sleep(600)
"""


class Client:
    """A client, and the views that have come."""

    def __init__(self, server: Spawned, port: int) -> None:
        self.server, self.port = server, port
        self.seen: list[StoreView] = []
        self.woken = threading.Event()
        self.store = StoreClient(self._connect(), self._connect, Endpoint(HOST, port), self.woken.set)

    def _connect(self) -> TCPStore:
        # A connection that is cut while it is made is given up by torch at its timeout only.
        return TCPStore(HOST, self.port, is_master=False, timeout=timedelta(seconds=10))

    def views(self) -> dict[str, str]:
        """The newest view of each key."""
        self.seen += self.store.views()
        return {view.key: view.value for view in self.seen}

    def expect(self, key: str, value: str) -> None:
        """Wait until the newest view of the key is this one."""
        wait_until(lambda: self.views().get(key) == value, what=f"{key} is {value!r}")


@pytest.fixture
def server(spawn: Spawner) -> tuple[Spawned, int]:
    """A process that serves a store, and its port."""
    server = spawn.python(SERVER)
    return server, int(server.wait_for(r"port (\d+)")[1])  # type: ignore[index]


@pytest.fixture
def client(server: tuple[Spawned, int]) -> Iterator[Client]:
    client = Client(*server)
    yield client
    client.store.close()
    wait_until(lambda: not [each for each in threading.enumerate() if "holdfast-store" in each.name])


def test_first_of_two_writers_wins_and_both_learn_it(client: Client) -> None:
    client.store.carry_out(Cas("once", "", "first"))
    client.store.carry_out(Cas("once", "", "second"))
    client.store.drain(60.0)
    assert [view.value for view in client.store.views()] == ["first", "first"]


def test_watched_key_is_delivered_once_per_value(client: Client) -> None:
    client.store.watch({"a": 0.01, "b": 0.01})
    client.expect("a", ""), client.expect("b", "")
    client.store.carry_out(Put("a", "1"))
    client.store.carry_out(Put("b", "2"))
    client.expect("a", "1"), client.expect("b", "2")
    assert [view.value for view in client.seen if view.key == "a"] == ["", "1"]
    client.store.watch({})
    client.store.watch({"a": 0.01})
    wait_until(lambda: client.views() and [v.value for v in client.seen if v.key == "a"] == ["", "1", "1"])


def cut(port: int) -> int:
    """Break this process's connections to the port; returns how many there were."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as link:
                if link.family in (socket.AF_INET, socket.AF_INET6) and link.getpeername()[1] == port:
                    link.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def test_broken_connection_is_replaced_and_nothing_lost(client: Client) -> None:
    client.store.watch({"log": 0.01})
    for number in range(5):
        wait_until(lambda: cut(client.port), what="a connection to the store")
        client.store.carry_out(Append("log", str(number)))
        wait_until(lambda number=number: f"{number}\n" in client.views().get("log", ""))
    lines = client.views()["log"].splitlines()
    assert list(dict.fromkeys(lines)) == ["0", "1", "2", "3", "4"], "in order; one may stand there twice"


def test_server_that_ended_is_reported_as_refusing(client: Client) -> None:
    client.store.watch({"a": 0.01})
    client.expect("a", "")
    client.server.kill()
    wait_until(lambda: client.store.contact().refused)
    assert client.store.contact().refused == f"no process listens at {HOST}:{client.port} any more"
    with pytest.raises(StoreGone, match="no process listens"):
        client.store.ask("a", 5.0)


def test_name_that_is_taken_gets_a_number(client: Client) -> None:
    store = TCPStore(HOST, client.port, is_master=False)
    assert [register(store, "pod:7") for _ in range(3)] == ["pod:7", "pod:7-2", "pod:7-3"]
