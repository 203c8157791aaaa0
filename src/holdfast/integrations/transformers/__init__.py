"""Callbacks for Hugging Face `transformers.Trainer`: fault tolerance, preemption, stragglers.

The names are those of the Lightning callbacks in `holdfast.ptl_resiliency`, and so are arguments, log texts and state
files. What always holds: importing this package loads nothing heavy; transformers is loaded when a callback is first
asked for. Does not cover: `accelerate` loops, which are the user's own; use `holdfast.fault_tolerance` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from holdfast.testing.simulated import SimulatedFaultParams as SimulatedFaultParams

    from .bundle import HoldfastCallback as HoldfastCallback
    from .fault_tolerance_callback import FaultToleranceCallback as FaultToleranceCallback
    from .fault_tolerance_callback import (
        FaultToleranceSectionsCallback as FaultToleranceSectionsCallback,
    )
    from .preemption_callback import PreemptionCallback as PreemptionCallback
    from .straggler_det_callback import StragglerDetectionCallback as StragglerDetectionCallback

_HOME = {
    "FaultToleranceCallback": "fault_tolerance_callback",
    "FaultToleranceSectionsCallback": "fault_tolerance_callback",
    "HoldfastCallback": "bundle",
    "PreemptionCallback": "preemption_callback",
    "SimulatedFaultParams": "..testing.simulated",
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
