"""SimulatedFaultParams: the documented names and defaults, and the message to the user about a mistake."""

from __future__ import annotations

import inspect
import signal
from typing import Any

import pytest

from holdfast.testing import KINDS, Fault, SimulatedFaultParams
from tests.processes import Spawner

ARMED = """
import sys, time
from holdfast.testing import SimulatedFaultParams, inject
inject(SimulatedFaultParams(sys.argv[1], 0.05, rand_delay=0.05, rank_to_fail=1))
print("armed", flush=True)
while sys.argv[2] == "target":
    time.sleep(60)
"""


def test_the_documented_signature() -> None:
    signature = str(inspect.signature(SimulatedFaultParams)).replace("'", "")
    assert signature == (
        "(fault_type: str, base_delay: float, rand_delay: float = 0.0, rank_to_fail: int | None = None) -> None"
    )


@pytest.mark.parametrize(
    ("fault_type", "kind"), [("rank_killed", "kill"), ("rank_hung", "stop"), *((k, k) for k in KINDS)]
)
def test_every_fault_type_is_a_fault_of_every_cycle(fault_type: str, kind: str) -> None:
    params = SimulatedFaultParams(fault_type, 5, 2.0, 3)
    assert params.to_fault() == Fault(kind, after=5, rand=2.0, rank=3, cycle="each")


def test_from_a_dict_or_an_instance() -> None:
    params = SimulatedFaultParams.parse({"fault_type": "rank_hung", "base_delay": 10, "rank_to_fail": 0})
    assert params == SimulatedFaultParams("rank_hung", 10, 0.0, 0)
    assert SimulatedFaultParams.parse(params) is params


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"fault_type": "rank_hangs", "base_delay": 1},
            "unknown fault 'rank_hangs' (did you mean 'rank_hung'?)",
        ),
        ({"fault_type": "foo", "base_delay": 1}, "; documented names: rank_killed, rank_hung, random"),
        ({"fault_type": 9, "base_delay": 1}, "a fault's kind is a name"),
        ({"fault_type": "rank_hung"}, "base_delay is missing"),
        ({"base_delay": 1}, "fault_type is missing"),
        ({"fault_type": "rank_hung", "base_delay": "1"}, "after is a number of seconds from 0, not '1'"),
        ({"fault_type": "rank_hung", "base_delay": -1}, "not -1"),
        ({"fault_type": "rank_hung", "base_delay": 1, "rand_delay": float("nan")}, "rand is a number"),
        ({"fault_type": "rank_hung", "base_delay": 1, "rank_to_fail": -1}, "rank is a whole number"),
        (
            {"fault_type": "rank_hung", "base_delay": 1, "rank_to_fail": "all"},
            "rank_to_fail is a rank or None",
        ),
        ({"fault_type": "rank_hung", "base_delay": 1, "rank": 1}, "unknown key 'rank'"),
        (["rank_hung", 1], "a mapping is needed"),
    ],
)
def test_a_mistake_is_a_clear_value_error(params: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        SimulatedFaultParams.parse(params)
    assert str(caught.value).startswith("Failed to parse simulated fault params, ")
    assert words in str(caught.value)


def test_rank_killed_kills_its_rank_and_no_other(spawn: Spawner) -> None:
    other = spawn.python(ARMED, "rank_killed", "other", env={"RANK": "0", "WORLD_SIZE": "2"})
    rank = spawn.python(ARMED, "rank_killed", "target", env={"RANK": "1", "WORLD_SIZE": "2"})
    assert rank.wait() == -signal.SIGKILL
    assert other.wait() == 0
