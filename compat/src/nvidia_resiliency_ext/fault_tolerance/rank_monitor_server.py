"""Names of `holdfast.fault_tolerance` where programs look for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.fault_tolerance import RankMonitorLogger as RankMonitorLogger
    from holdfast.fault_tolerance import RankMonitorServer as RankMonitorServer
else:
    from nvidia_resiliency_ext._aliases import of

    __all__, __getattr__, __dir__ = of(__name__)
