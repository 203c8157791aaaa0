"""What training programs and launchers import: the client, its configuration, limits and workload control.

Nothing is loaded until it is asked for: importing this package imports no torch, no numpy and no YAML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR as FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
    from .client import RankMonitorClient as RankMonitorClient
    from .client import WorkloadAction as WorkloadAction
    from .client import WorkloadControlRequest as WorkloadControlRequest
    from .config import FaultToleranceConfig as FaultToleranceConfig
    from .errors import RankMonitorClientError as RankMonitorClientError
    from .server import RankMonitorLogger as RankMonitorLogger
    from .server import RankMonitorServer as RankMonitorServer
    from .timeouts.learned_timeouts import HeartbeatTimeouts as HeartbeatTimeouts
    from .timeouts.learned_timeouts import SectionTimeouts as SectionTimeouts

_HOME = {
    "FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR": "board.values",
    "FaultToleranceConfig": "config",
    "HeartbeatTimeouts": "timeouts.learned_timeouts",
    "RankMonitorClient": "client",
    "RankMonitorClientError": "errors",
    "RankMonitorLogger": "server",
    "RankMonitorServer": "server",
    "SectionTimeouts": "timeouts.learned_timeouts",
    "WorkloadAction": "client",
    "WorkloadControlRequest": "client",
}
"""The two names that are not in `__all__` are for programs that look for them in submodules of NVRx."""

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
