"""Addresses that others can reach this node by, and who listens on a port."""

from __future__ import annotations

import socket
import sys

import pytest

from holdfast.fault_tolerance.launcher.rendezvous import listens_on, own_address
from tests.nodes.conftest import Network
from tests.processes import Spawner


def test_the_host_goes_by_its_name_where_that_is_loopback_to_itself() -> None:
    """Debian gives a machine's own name 127.0.1.1. To other nodes that address is they themselves."""
    assert own_address("localhost", is_host=True) == "localhost"
    assert own_address("127.0.1.1", is_host=True) == "127.0.1.1"


def test_others_on_the_same_machine_are_reached_by_loopback() -> None:
    assert own_address("127.0.0.1", is_host=False) == "127.0.0.1"


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
