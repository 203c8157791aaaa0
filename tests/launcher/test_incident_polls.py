"""How often nodes read the store while they wait for the report of another one."""

from __future__ import annotations

from holdfast.fault_tolerance.launcher.incident_report import OTHERS, poll_pauses


def test_two_thousand_nodes_read_rarely_and_apart() -> None:
    moments: list[float] = []
    for number in range(2000):
        pauses = list(poll_pauses(number))
        assert abs(sum(pauses) - OTHERS) < 1e-6 and len(pauses) <= 16
        moments += [sum(pauses[:count]) for count in range(1, len(pauses))]
    busiest = max(sum(1 for at in moments if second <= at < second + 1) for second in range(1, 10))
    assert busiest <= 2500, "reads of all nodes within one second"
