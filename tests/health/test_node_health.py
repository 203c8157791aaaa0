"""The launcher's part: GPU memory of ranks that ended, and what is reported."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.launcher.control.messages import Health, Suspected
from holdfast.fault_tolerance.launcher.node_health import NodeHealth
from holdfast.health.checks import Wanted
from tests.health.conftest import Facts


class Records(list[dict[str, Any]]):
    def record(self, kind: str, **fields: Any) -> None:
        self.append({"kind": kind, **fields})


class Made:
    """A node's health with a stand-in of NVML, and what it posts and records."""

    def __init__(self, **changes: Any) -> None:
        self.posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.records = Records()
        config = FaultToleranceConfig(**{"gpu_memory_reclaim_timeout": 60, **changes})
        wanted = Wanted(driver="/dev/nvidiactl", card_states=None, node="n1", seconds=20.0)
        self.health = NodeHealth(wanted, config, self.records, self.posted.put)  # type: ignore[arg-type]


@pytest.fixture
def made(facts: Facts) -> Iterator[Made]:
    made = Made()
    yield made
    made.health.close()


def test_a_restart_waits_for_the_memory_of_its_own_ranks(made: Made, facts: Facts) -> None:
    facts(HOLDER=4711, HELD=4000)
    assert made.health.await_memory({4711}, lambda: made.posted.put("go"))
    with pytest.raises(queue.Empty):
        made.posted.get(timeout=0.5)
    facts()
    assert made.posted.get(timeout=60) == "go"


@pytest.mark.parametrize("held", [{"HOLDER": 12, "HELD": 4000}, {"HOLDER": 4711, "HELD": 500}])
def test_it_waits_neither_for_others_nor_for_little(made: Made, facts: Facts, held: dict[str, int]) -> None:
    facts(**held)
    assert made.health.await_memory({4711}, lambda: made.posted.put("go"))
    assert made.posted.get(timeout=60) == "go"
    assert not made.health.await_memory((), lambda: None)


def test_it_names_who_holds_the_memory_and_goes_on(facts: Facts) -> None:
    made = Made(gpu_memory_reclaim_timeout=0.2)
    facts(HOLDER=4711, HELD=4000)
    assert made.health.await_memory({4711}, lambda: made.posted.put("go"))
    assert made.posted.get(timeout=60) == "go"
    (event,) = [each for each in made.records if each["kind"] == "gpu_memory_held"]
    assert event["text"].endswith("process 4711 holds 4000 MiB of GPU 0")
    made.health.close()


def test_a_stop_signal_ends_the_wait(made: Made, facts: Facts) -> None:
    facts(HOLDER=4711, HELD=4000)
    made.health.await_memory({4711}, lambda: made.posted.put("go"))
    made.health.stop_waiting()
    assert made.posted.get(timeout=60) == "go"


def test_hardware_is_told_once_and_makes_the_node_suspect(made: Made, facts: Facts) -> None:
    made.health.check(0)
    assert made.posted.get(timeout=60) == Health(0)
    facts(REMAP_FAILED=1)
    for cycle in 1, 2:
        made.health.check(cycle)
        found = [made.posted.get(timeout=60)]
        if found == [Suspected()]:
            found.append(made.posted.get(timeout=60))
        assert isinstance(found[-1], Health) and "must be replaced" in found[-1].sick
    kinds = [each["kind"] for each in made.records]
    assert kinds == ["health", "node_suspected"] and made.records[0]["hardware"]
    assert "must be replaced." in made.health.notes()[0]


def test_a_check_beside_training_tells_what_is_new(made: Made, facts: Facts) -> None:
    made.health.check(0)
    made.posted.get(timeout=60)
    facts(LINKS=1)
    until = time.monotonic() + 60
    while made.posted.empty() and time.monotonic() < until:
        made.health.every_second(0, trains=True)
    found = [made.posted.get(timeout=60), made.posted.get(timeout=60)]
    assert found == [Suspected(), Health(0, "GPUs: GPU 0 (Stand-in): NVLink 1 is down")]
