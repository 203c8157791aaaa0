"""Which name of which module here is which object of Holdfast's; loaded when it is first asked for.

What always holds: a name is looked up in Holdfast once and then kept, so that replacing it in a module, as tests do,
stays with that module. Only what the table has is offered: `hasattr` is False for the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_FAULT_TOLERANCE = "holdfast.fault_tolerance"
_LIGHTNING = "holdfast.ptl_resiliency"
_STRAGGLER = "holdfast.straggler"

OFFERED: dict[str, tuple[str, tuple[str, ...]]] = {
    "fault_tolerance": (
        _FAULT_TOLERANCE,
        (
            "FaultToleranceConfig",
            "HeartbeatTimeouts",
            "RankMonitorClient",
            "RankMonitorClientError",
            "RankMonitorServer",
            "SectionTimeouts",
            "WorkloadAction",
            "WorkloadControlRequest",
        ),
    ),
    "fault_tolerance.config": (_FAULT_TOLERANCE, ("FaultToleranceConfig",)),
    "fault_tolerance.data": (
        _FAULT_TOLERANCE,
        (
            "FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR",
            "HeartbeatTimeouts",
            "SectionTimeouts",
            "WorkloadAction",
            "WorkloadControlRequest",
        ),
    ),
    "fault_tolerance.launcher": (f"{_FAULT_TOLERANCE}.launcher", ("get_args_parser",)),
    "fault_tolerance.rank_monitor_client": (
        _FAULT_TOLERANCE,
        ("RankMonitorClient", "RankMonitorClientError"),
    ),
    "fault_tolerance.rank_monitor_server": (_FAULT_TOLERANCE, ("RankMonitorLogger", "RankMonitorServer")),
    "ptl_resiliency": (
        _LIGHTNING,
        (
            "FaultToleranceCallback",
            "FaultToleranceSectionsCallback",
            "PreemptionCallback",
            "SimulatedFaultParams",
            "StragglerDetectionCallback",
        ),
    ),
    "ptl_resiliency._utils": (_LIGHTNING, ("SimulatedFaultParams",)),
    "ptl_resiliency.fault_tolerance_callback": (
        _LIGHTNING,
        ("FaultToleranceCallback", "SimulatedFaultParams"),
    ),
    "ptl_resiliency.fault_tolerance_sections_callback": (
        _LIGHTNING,
        ("FaultToleranceSectionsCallback", "SimulatedFaultParams"),
    ),
    "ptl_resiliency.straggler_det_callback": (_LIGHTNING, ("StragglerDetectionCallback",)),
    "straggler": (
        _STRAGGLER,
        ("CallableId", "Detector", "Report", "Statistic", "StragglerId", "Thresholds", "Verdict"),
    ),
    "straggler.straggler": (_STRAGGLER, ("CallableId", "Detector")),
    "straggler.reporting": (_STRAGGLER, ("Report", "StragglerId")),
    "straggler.statistics": (_STRAGGLER, ("Statistic",)),
}
"""Module below `nvidia_resiliency_ext` -> module of Holdfast's, names. `attribution.straggler` is as `straggler`."""


def of(module: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """What a module here needs: its ``__all__``, ``__getattr__`` and ``__dir__``."""
    key = module.removeprefix("nvidia_resiliency_ext.").removeprefix("attribution.")
    source, names = OFFERED[key]
    own = vars(sys.modules[module])

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}: Holdfast does not offer it")
        own[name] = getattr(import_module(source), name)
        return own[name]

    def listed() -> list[str]:
        return sorted({*own, *names})

    return list(names), load, listed
