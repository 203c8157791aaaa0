"""What training programs and launchers import: the client, its configuration, limits and workload control.

Nothing is loaded until it is asked for: importing this package imports no torch, no numpy and no YAML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .client import RankMonitorClient as RankMonitorClient
    from .config import FaultToleranceConfig as FaultToleranceConfig
    from .errors import RankMonitorClientError as RankMonitorClientError
    from .limits import HeartbeatTimeouts as HeartbeatTimeouts
    from .limits import SectionTimeouts as SectionTimeouts
    from .server import RankMonitorServer as RankMonitorServer
    from .workload_control import WorkloadAction as WorkloadAction
    from .workload_control import WorkloadControlRequest as WorkloadControlRequest

_HOME = {
    "FaultToleranceConfig": "config",
    "HeartbeatTimeouts": "limits",
    "RankMonitorClient": "client",
    "RankMonitorClientError": "errors",
    "RankMonitorServer": "server",
    "SectionTimeouts": "limits",
    "WorkloadAction": "workload_control",
    "WorkloadControlRequest": "workload_control",
}

__all__ = [
    "FaultToleranceConfig",
    "HeartbeatTimeouts",
    "RankMonitorClient",
    "RankMonitorClientError",
    "RankMonitorServer",
    "SectionTimeouts",
    "WorkloadAction",
    "WorkloadControlRequest",
]

__getattr__, __dir__ = names(__name__, _HOME)
