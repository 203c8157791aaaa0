"""Who can reach the ranks' store: real stores, real connections."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from torch.distributed import TCPStore

from holdfast.fault_tolerance.launcher.rank_store import RankStore
from tests.nodes.conftest import Network
from tests.processes import Spawner


@pytest.fixture(scope="module", autouse=True)
def _libuv_has_begun() -> None:
    """The first store of a process opens a pipe that libuv keeps for ever: that is nobody's leak."""
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def opened() -> Iterator[Callable[[str], RankStore]]:
    stores: list[RankStore] = []

    def make(address: str) -> RankStore:
        stores.append(RankStore(address))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def _serves(address: str, port: int) -> bool:
    """Whether a rank that is told this address finds a store there."""
    with suppress(OSError), socket.create_connection((address, port), timeout=5):
        client = TCPStore(address, port, is_master=False)
        client.set("key", "value")
        return bool(client.get("key") == b"value")
    return False


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_at_an_address_of_this_machine_it_listens_there_only(
    opened: Callable[[str], RankStore], address: str
) -> None:
    if address == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    store = opened(address)
    assert _serves(address, store.port)
    others = {"127.0.0.1", "127.0.0.3", "::1"} - {address}
    assert not any(_serves(other, store.port) for other in others)


@pytest.mark.parametrize("address", ["localhost", "a.name.that.nobody.knows", "192.0.2.1"])
def test_by_a_name_or_a_translated_address_it_listens_on_all(
    opened: Callable[[str], RankStore], address: str
) -> None:
    store = opened(address)
    for other in ("127.0.0.1", "127.0.0.2", *(["::1"] if _has_ipv6() else [])):
        assert _serves(other, store.port)


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


def _has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False
