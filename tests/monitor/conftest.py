"""A monitor that watches boards made by the test; and whole jobs under the real launcher."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator

import pytest

from holdfast.fault_tolerance.launcher.ranks.boards import private_directory
from holdfast.fault_tolerance.monitor.control import RUNNING, ControlPage
from tests.processes import Spawner

from .job import freezer
from .node import Node

__all__ = ["freezer"]

MakeNode = Callable[..., Node]


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """How ranks are started is not the topic here, and a zygote imports torch."""
    monkeypatch.setenv("PET_FT_WARM_START", "off")


@pytest.fixture
def make_node(spawn: Spawner) -> Iterator[MakeNode]:
    """`make_node(check_interval=5.0, termination=SIGKILL, patience=60.0)`: a node whose monitor runs."""
    made: list[Node] = []
    folders: list[str] = []

    def make(check_interval: float = 5.0, termination: int = signal.SIGKILL, patience: float = 60.0) -> Node:
        folders.append(private_directory())
        node = Node(
            spawn, folders[-1], check_interval=check_interval, termination=termination, patience=patience
        )
        made.append(node)
        return node

    yield make
    for node in made:
        node.close()
    for folder in folders:  # also of a node that could not be made
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """A node as it is by default."""
    return make_node()


@pytest.fixture
def folder() -> Iterator[str]:
    """A launcher's folder with a control page that says that cycle 0 runs."""
    made = private_directory()
    page = ControlPage(made)
    page.enter(RUNNING, 0)
    page.close()
    yield made
    shutil.rmtree(made, ignore_errors=True)
