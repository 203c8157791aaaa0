"""Lightning callbacks: fault tolerance, straggler detection and preemption, for `lightning` and `pytorch_lightning`.

Names, defaults, log texts and state files are those of the field's documents. What always holds: importing this package
loads nothing heavy; a callback loads Lightning when it is first asked for.
Does not cover: Fabric, whose loops are the user's own; use `holdfast.fault_tolerance` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from holdfast.testing.fault import SimulatedFaultParams as SimulatedFaultParams

    from .callbacks import FaultToleranceCallback as FaultToleranceCallback
    from .callbacks import HoldfastCallback as HoldfastCallback
    from .callbacks import PreemptionCallback as PreemptionCallback
    from .callbacks import StragglerDetectionCallback as StragglerDetectionCallback
    from .supervised import FaultToleranceSectionsCallback as FaultToleranceSectionsCallback

_HOME = {
    "FaultToleranceCallback": "callbacks",
    "FaultToleranceSectionsCallback": "supervised",
    "HoldfastCallback": "callbacks",
    "PreemptionCallback": "callbacks",
    "SimulatedFaultParams": ".testing.fault",
    "StragglerDetectionCallback": "callbacks",
}

__all__ = list(_HOME)
__getattr__, __dir__ = names(__name__, _HOME, needs_torch=True)
