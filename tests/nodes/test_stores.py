"""The job's store and the ranks' stores: who reaches them, who hosts them, and connections that break."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import psutil
import pytest
from torch.distributed import TCPStore

from holdfast.fault_tolerance.launcher.control.messages import Append, Cas, Put, StoreView
from holdfast.fault_tolerance.launcher.inbox import Inbox
from holdfast.fault_tolerance.launcher.rank_store import ENDED, RankStore, RankStores
from holdfast.fault_tolerance.launcher.rendezvous import Endpoint, listens_on, own_address, register
from holdfast.fault_tolerance.launcher.store import StoreClient, StoreGone
from tests.cluster import Network, cut
from tests.processes import CEILING, Spawned, Spawner, wait_until


@pytest.fixture
def opened() -> Iterator[Callable[[str], RankStore]]:
    stores: list[RankStore] = []

    def make(address: str) -> RankStore:
        stores.append(RankStore(address))
        return stores[-1]

    yield make
    for store in stores:
        store.listener.close()


def _connects(address: str, port: int) -> bool:
    """Whether a rank that is given this address finds a server there."""
    with suppress(OSError), socket.create_connection((address, port), timeout=5):
        return True
    return False


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_at_an_address_of_this_machine_it_listens_there_only(
    opened: Callable[[str], RankStore], address: str
) -> None:
    if address == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    store = opened(address)
    assert _connects(address, store.port)
    others = {"127.0.0.1", "127.0.0.3", "::1"} - {address}
    assert not any(_connects(other, store.port) for other in others)


@pytest.mark.parametrize("address", ["localhost", "a.name.that.is.unknown", "192.0.2.1"])
def test_by_a_name_or_a_translated_address_it_listens_on_all(
    opened: Callable[[str], RankStore], address: str
) -> None:
    store = opened(address)
    for other in ("127.0.0.1", "127.0.0.2", *(["::1"] if _has_ipv6() else [])):
        assert _connects(other, store.port)


def test_in_a_network_others_reach_it_by_the_address_that_they_are_told(
    network: Network, spawn: Spawner
) -> None:
    code = (
        "import sys, time; from holdfast.fault_tolerance.launcher.rank_store import RankStore; "
        "store = RankStore(sys.argv[1]); print('port', store.port, flush=True); time.sleep(600)"
    )
    there = network.address("a")
    host = spawn([*network.inside("a"), sys.executable, "-c", code, there])
    port = host.wait_for(r"port (\d+)").group(1)  # type: ignore[union-attr]
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)"
    for name, address, code_ in ("b", there, 0), ("a", there, 0), ("a", "127.0.0.1", 1):
        asked = spawn([*network.inside(name), sys.executable, "-c", connect, address, port])
        assert asked.wait() == code_, (name, address)


class Node:
    """Rank stores and the inbox in which their launcher waits."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.stores = RankStores("127.0.0.1", self.inbox, at_once=False)

    def until(self, condition: Callable[[], object], seconds: float = CEILING) -> None:
        """Wait in the inbox until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            self.inbox.wait(0.05)

    def exchange(self, port: int, key: str) -> str:
        """What a rank reads that writes a key, if that did not exist before."""
        found: list[str] = []

        def ask() -> None:
            client = TCPStore("127.0.0.1", port, is_master=False)
            found.append(client.compare_set(key, "", "mine").decode())

        thread = threading.Thread(target=ask)
        thread.start()
        self.until(lambda: found)
        thread.join()
        return found[0]

    def host(self) -> psutil.Process:
        """The process that hosts the stores."""
        (pid,) = self.stores.pids
        return psutil.Process(pid)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.stores.close()
    node.inbox.close()


def test_host_serves_each_cycle_afresh_and_is_replaced(node: Node) -> None:
    _, port = node.stores.open()
    node.inbox.wait(0.2)
    assert not node.stores.pids  # no rank has connected
    first = socket.create_connection(("127.0.0.1", port))
    node.until(lambda: node.stores.pids)
    early = node.host()
    early.kill()  # before its store has answered
    node.until(lambda: node.stores.pids != {early.pid})
    assert node.exchange(port, "key") == "mine" and not node.stores.failure
    first.close()

    host = node.host()
    node.stores.every_second(is_steady=True)  # which makes the next one
    _, second = node.stores.open()
    node.stores.close_earlier()
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGSTOP:
        host.send_signal(number)
    node.stores.every_second(is_steady=False)
    assert node.exchange(second, "key") == "mine"
    node.until(lambda: not _connects("127.0.0.1", port))

    host.kill()
    node.until(lambda: node.stores.failure)
    assert node.stores.failure.startswith(ENDED)
    assert not _connects("127.0.0.1", second)
    _, third = node.stores.open()
    assert not node.stores.failure and _connects("127.0.0.1", third)
    node.until(lambda: node.stores.pids)


def test_host_ends_with_its_launcher(spawn: Spawner) -> None:
    code = (
        "import time; from holdfast.fault_tolerance.launcher.inbox import Inbox; "
        "from holdfast.fault_tolerance.launcher.rank_store import RankStores; "
        "stores = RankStores('127.0.0.1', Inbox(), at_once=True); stores.open(); "
        "print('host', *stores.pids, flush=True); time.sleep(600)"
    )
    launcher = spawn([sys.executable, "-c", code])
    host = psutil.Process(int(launcher.wait_for(r"host (\d+)").group(1)))  # type: ignore[union-attr]
    os.kill(launcher.pid, signal.SIGKILL)
    host.wait(CEILING)


def _has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def test_rank_stores_answers_that_arrive_together_are_told_apart() -> None:
    """A host that was forked answers on a stream."""
    ours, theirs = socket.socketpair()
    inbox = Inbox()
    stores = RankStores(
        "127.0.0.1", inbox, at_once=True, fork=lambda: (subprocess.Popen(["sleep", "60"]), ours)
    )
    try:
        _, port = stores.open()
        stores.every_second(is_steady=True)
        theirs.send(b"oe%d no thread\no" % port)
        inbox.wait(CEILING)
        assert stores.failure.endswith("could not be started: no thread")
        stores.open()
        assert not stores.failure
    finally:
        stores.close()
        inbox.close()
        theirs.close()


# -- addresses of nodes ---------------------------------------------------------------------------------------


def test_the_host_goes_by_its_name_where_that_is_loopback_to_itself() -> None:
    """Debian gives a machine's own name 127.0.1.1. To other nodes that address is they themselves."""
    assert own_address("localhost", is_host=True) == "localhost"
    assert own_address("127.0.1.1", is_host=True) == "127.0.1.1"


@pytest.mark.parametrize("is_host", [True, False])
def test_in_a_network_a_node_has_the_address_on_the_way_to_the_host(
    network: Network, spawn: Spawner, is_host: bool
) -> None:
    name = "a" if is_host else "b"
    code = (
        "from holdfast.fault_tolerance.launcher.rendezvous import own_address; "
        f"print(own_address({network.address('a')!r}, is_host={is_host}))"
    )
    asked = spawn([*network.inside(name), sys.executable, "-c", code])
    assert asked.wait() == 0
    assert asked.out().strip() == network.address(name)


def test_who_listens_on_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert listens_on(port)
        with socket.create_connection(("127.0.0.1", port)):
            pass
    assert not listens_on(port)


def test_a_port_of_another_process_is_not_ours(spawn: Spawner) -> None:
    other = spawn.python(
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
        "print('port', s.getsockname()[1], flush=True); time.sleep(600)"
    )
    found = other.wait_for(r"port (\d+)")
    assert not isinstance(found, str)
    assert not listens_on(int(found.group(1)))


def test_port_0_is_the_port_on_which_the_store_listens(spawn: Spawner) -> None:
    """`--rdzv-endpoint localhost:0` is torchrun's way to start one node: its launcher must find its own store again."""
    code = (
        "from holdfast.fault_tolerance.launcher.rendezvous import meet; "
        "from torch.distributed.elastic.rendezvous import RendezvousParameters; "
        "met = meet(RendezvousParameters('c10d', 'localhost:0', 'job', 1, 1), 'a'); "
        "print(met.is_host, met.endpoint.port > 0, met.endpoint.refuses())"
    )
    asked = spawn([sys.executable, "-c", code])
    assert asked.wait() == 0
    assert asked.out().split() == ["True", "True", "False"]


# -- the launcher's way to the job's store: order of operations, watched keys, broken connections ------------


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


def test_broken_connection_is_replaced_and_nothing_lost(client: Client) -> None:
    client.store.watch({"log": 0.01})
    for number in range(5):
        wait_until(lambda: cut(os.getpid(), client.port), what="a connection to the store")
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
