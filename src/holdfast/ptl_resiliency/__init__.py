"""Lightning callbacks: fault tolerance, straggler detection and preemption, for `lightning` and `pytorch_lightning`.

Names, defaults, log texts and state files are those of the field's documents. What always holds: importing this package
loads nothing heavy; a callback loads Lightning when it is first asked for.
Does not cover: Fabric, whose loops are the user's own; use `holdfast.fault_tolerance` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from holdfast.testing.simulated import SimulatedFaultParams as SimulatedFaultParams

    from .bundle import HoldfastCallback as HoldfastCallback
    from .fault_tolerance_callback import FaultToleranceCallback as FaultToleranceCallback
    from .fault_tolerance_sections_callback import (
        FaultToleranceSectionsCallback as FaultToleranceSectionsCallback,
    )
    from .preemption_callback import PreemptionCallback as PreemptionCallback
    from .straggler_det_callback import StragglerDetectionCallback as StragglerDetectionCallback

_HOME = {
    "FaultToleranceCallback": "fault_tolerance_callback",
    "FaultToleranceSectionsCallback": "fault_tolerance_sections_callback",
    "HoldfastCallback": "bundle",
    "PreemptionCallback": "preemption_callback",
    "SimulatedFaultParams": ".testing.simulated",
    "StragglerDetectionCallback": "straggler_det_callback",
}

__all__ = [
    "FaultToleranceCallback",
    "FaultToleranceSectionsCallback",
    "HoldfastCallback",
    "PreemptionCallback",
    "SimulatedFaultParams",
    "StragglerDetectionCallback",
]

__getattr__, __dir__ = names(__name__, _HOME, needs_torch=True)
