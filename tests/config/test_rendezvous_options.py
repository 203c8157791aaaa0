"""How nodes are to meet: what cannot work is refused, a key that is not read is a warning."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.checks import (
    KEEP_ALIVE,
    NO_ID,
    READ,
    UNUSED,
    without_effect,
)
from holdfast.fault_tolerance.launcher.command_line.torch_options import rdzv_settings
from tests.config.test_checks import checked
from tests.versions.additions import accept_additions


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--rdzv-conf=timeout",), "--rdzv-conf: 'timeout' is not allowed: 'timeout' is not KEY=VALUE"),
        (("--rdzv-conf=join_timeout=soon",), "join_timeout has 'soon'"),
        (("--rdzv-conf=join_timeout=0",), "join_timeout has '0'"),
        (("--rdzv-conf=is_host=maybe",), "is_host has 'maybe'; give 0 or 1"),
        (("--rdzv-conf=store_type=hash",), "store_type has 'hash'; give tcp"),
        (("--rdzv-backend=etcd-v2",), "Holdfast restarts nodes together through a c10d store; use c10d"),
        (("--rdzv-endpoint=host:x",), "--rdzv-endpoint: "),
        (("--rdzv-endpoint=ho st:1",), "--rdzv-endpoint: "),
        (("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint="), "--rdzv-endpoint: '' is not allowed: with "
         "--nnodes 2 give every node the HOST:PORT of node 0; a variable that it was given by was probably empty"),
        (("--nnodes=2", "--node-rank=2"), "--node-rank: 2 is not allowed: with --nnodes 2 give 0 to 1"),
        (("--node-rank=1",), "--node-rank: 1 is not allowed: with --nnodes 1:1 give 0"),
        (("--node-rank=-1",), "--node-rank: -1 is not allowed"),
        *((("--rdzv-id=" + value, "--nnodes=1:2"), f"--rdzv-id: {value!r} is not allowed: the variable that it was "
          "given by was probably empty; with --nnodes 1:2 give every node the same id") for value in ("", " ")),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(*argv)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "is_one_node"),
    [
        ((), True),
        (("--rdzv-endpoint=localhost:0",), True),
        (("--rdzv-endpoint=host:29500",), False),  # at which a spare may join
        (("--rdzv-endpoint=host",), False),
        (("--rdzv-endpoint=host:29500", "--standalone"), True),
        (("--rdzv-endpoint=localhost:0", "--nnodes=1:2"), False),
    ],
)
def test_one_node_is_one_that_no_other_can_join(argv: tuple[str, ...], is_one_node: bool) -> None:
    assert checked(*argv).is_one_node is is_one_node


def test_one_node_needs_no_id() -> None:
    assert checked("--rdzv-id=").rdzv_id == checked().rdzv_id == NO_ID
    assert checked("--rdzv-id=7").rdzv_id == "7"


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("last_cal_timeout=5", "last_cal_timeout has no effect: there is no such key; did you mean "
         "last_call_timeout?"),
        ("is_host=1, jointimeout=9", "jointimeout has no effect: there is no such key; did you mean "
         "join_timeout?"),
        ("xyz=1", "xyz has no effect: there is no such key; there are "
         "is_host, join_timeout, last_call_timeout, read_timeout, store_type"),
        ("close_timeout=5", "close_timeout has no effect: torch's rendezvous handler is not used"),
        ("keep_alive_interval=5", "keep_alive_interval has no effect: lost nodes are detected by --ft-node-timeout"),
    ],
)  # fmt: skip
def test_a_key_that_nobody_reads_is_a_warning(conf: str, said: str) -> None:
    assert without_effect(rdzv_settings(conf), "PET_RDZV_CONF") == [f"PET_RDZV_CONF: {said}"]


def test_keys_that_are_read_are_none() -> None:
    assert without_effect([], "--rdzv-conf") == []
    assert without_effect(READ, "--rdzv-conf") == []


class Recorder(RendezvousParameters):
    """Keeps the keys that torch asks for."""

    def __init__(self, **config: Any) -> None:
        super().__init__("c10d", "localhost:0", "run", 1, 1, **config)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """As torch's, and remembered."""
        self.asked.add(key)
        return super().get(key, default)


@pytest.fixture(scope="module")
def first_store() -> None:
    """torch keeps a pipe for good from the first store of a process on, which is no leak of a test."""
    TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.mark.usefixtures("first_store")
def test_keys_are_those_that_the_installed_torch_reads() -> None:
    parameters = Recorder(is_host="1")
    backend, store = create_backend(parameters)
    create_handler(store, backend, parameters)
    known = READ | KEEP_ALIVE | UNUSED
    accept_additions("keys of --rdzv-conf", parameters.asked - known)
    assert known - parameters.asked <= {"cas_backoff_max_seconds"}
