"""The client of the launcher under which a rank runs. Beside the programs, whose folder is first on their path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class NoClient:
    """That of a launcher without limits: no call does anything."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def connected_client(who: str) -> Any:
    """That of "holdfast" or "nvrx", connected; `NoClient` of any other launcher."""
    if who == "holdfast":
        from holdfast.fault_tolerance import RankMonitorClient
    elif who == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
    else:
        return NoClient()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client


@contextmanager
def section(client: Any, name: str) -> Iterator[None]:
    """A section of this client."""
    client.start_section(name)
    yield
    client.end_section(name)
