"""Names of `holdfast.fault_tolerance` where programs look for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.fault_tolerance import (
        FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR as FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
    )
    from holdfast.fault_tolerance import HeartbeatTimeouts as HeartbeatTimeouts
    from holdfast.fault_tolerance import SectionTimeouts as SectionTimeouts
    from holdfast.fault_tolerance import WorkloadAction as WorkloadAction
    from holdfast.fault_tolerance import WorkloadControlRequest as WorkloadControlRequest
else:
    from nvidia_resiliency_ext._aliases import of

    __all__, __getattr__, __dir__ = of(__name__)
