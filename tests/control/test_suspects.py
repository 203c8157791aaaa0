"""`control.suspects`: the log of judged failures, and what its newest failure makes suspect."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.control.suspects import (
    RECENT,
    decoded,
    encoded,
    of_earlier_jobs,
    suspected_by,
)
from holdfast.incidents.suspicions import Failure
from holdfast.incidents.verdict import HIGH, LOW
from holdfast.journal.event import Event


def crash(node: str, cycle: int, **more: Any) -> Failure:
    fields = {"node": node, "confidence": HIGH, "step": 10 * cycle, "cycle": cycle, "at": float(cycle)}
    return Failure("signal", **{**fields, **more})


def log(*failures: Failure) -> str:
    return "".join(encoded(each) + "\n" for each in failures)


def test_a_log_has_the_surest_judgement_of_each_cycle_in_order() -> None:
    late, sure = crash("a", 1), crash("b", 2)
    assert decoded(log(sure, crash("c", 2, confidence=LOW), late)) == [late, sure]
    assert decoded('{"kind":"of another version","cycle":3}\nno JSON\n' + log(sure)) == [sure]
    assert len(decoded(log(*(crash("a", cycle) for cycle in range(40))))) == RECENT


@pytest.mark.parametrize(
    ("nodes", "hardware", "expected"), [(2, "", ["a"]), (1, "", []), (1, "GPU 3 is lost", ["a"])]
)
def test_the_one_node_of_a_job_is_suspect_by_its_hardware_only(
    nodes: int, hardware: str, expected: list[str]
) -> None:
    newest = crash("a", 2, hardware=hardware)
    assert [each.what for each in suspected_by(newest, log(crash("a", 1), newest), nodes)] == expected


def test_pair_of_a_failure_is_named_and_no_node_is() -> None:
    """Also when it has failed before: the link stays suspect, and neither node becomes so."""
    before, newest = (Failure("network", peers=("a", "b"), cycle=cycle, at=float(cycle)) for cycle in (1, 2))
    found = suspected_by(newest, log(before, newest), 4)
    assert [each.what for each in found] == ["a and b"]
    assert "one of them, or the link between them" in found[0].facts
    assert not newest.accused
    assert suspected_by(crash("c", 3), log(before, newest, crash("c", 3)), 4) == []


def test_what_an_older_failure_made_suspect_is_not_named_again() -> None:
    newest = crash("b", 2)
    assert suspected_by(newest, log(crash("a", 1, hardware="GPU 3 is lost"), newest), 4) == []


def test_a_machine_that_an_earlier_job_suspected_is_so_for_an_hour() -> None:
    def event(name: str, at: float, facts: str = "GPU 3 is lost") -> Event:
        return Event("node_suspected", at, 0.0, "x:1", {"suspect": name, "facts": facts})

    rack = Event("node_suspected", 9_999.0, 0.0, "x:1", {"domain": "rack1", "facts": "two of it failed"})
    events = [event("a:1", 6_000.0), event("b:2", 7_000.0), event("b:3", 9_000.0, "again"), rack]
    lines = of_earlier_jobs([*events, Event("incident", 9_999.0, 0.0, "a:1", {})], 10_000.0)
    (found,) = decoded("\n".join(lines))
    assert (found.node, found.at, found.cycle, found.accused) == ("b", -1000.0, -1, frozenset({"b"}))
    newest = crash("c", 0, hardware="GPU 1 is lost")
    assert [each.what for each in suspected_by(newest, "\n".join([*lines, log(newest)]), 4)] == ["c"]
