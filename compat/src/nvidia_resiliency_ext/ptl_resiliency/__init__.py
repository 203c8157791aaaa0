"""`holdfast.ptl_resiliency`, under the name that programs import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.ptl_resiliency import FaultToleranceCallback as FaultToleranceCallback
    from holdfast.ptl_resiliency import FaultToleranceSectionsCallback as FaultToleranceSectionsCallback
    from holdfast.ptl_resiliency import PreemptionCallback as PreemptionCallback
    from holdfast.ptl_resiliency import SimulatedFaultParams as SimulatedFaultParams
    from holdfast.ptl_resiliency import StragglerDetectionCallback as StragglerDetectionCallback
else:
    from nvidia_resiliency_ext._aliases import of

    __all__, __getattr__, __dir__ = of(__name__)
