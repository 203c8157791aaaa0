"""The client of the launcher under which a rank runs. Beside the programs, whose folder is first on their path."""

from __future__ import annotations

from typing import Any


def connected_client(who: str) -> Any:
    """That of "holdfast" or "nvrx", connected; None of any other launcher."""
    if who == "holdfast":
        from holdfast.fault_tolerance import RankMonitorClient
    elif who == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
    else:
        return None
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client
