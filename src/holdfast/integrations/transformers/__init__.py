"""Callbacks for Hugging Face `transformers.Trainer`: fault tolerance, preemption, stragglers.

The names are those of the Lightning callbacks in `holdfast.ptl_resiliency`, and so are arguments, log texts and state
files. What always holds: importing this package loads nothing heavy; transformers is loaded when a callback is first
asked for. Does not cover: `accelerate` loops, which are the user's own; use `holdfast.fault_tolerance` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from holdfast.testing.fault import SimulatedFaultParams as SimulatedFaultParams

    from .callbacks import FaultToleranceCallback as FaultToleranceCallback
    from .callbacks import FaultToleranceSectionsCallback as FaultToleranceSectionsCallback
    from .callbacks import HoldfastCallback as HoldfastCallback
    from .callbacks import PreemptionCallback as PreemptionCallback
    from .callbacks import StragglerDetectionCallback as StragglerDetectionCallback

_HOME = {
    "FaultToleranceCallback": "callbacks",
    "FaultToleranceSectionsCallback": "callbacks",
    "HoldfastCallback": "callbacks",
    "PreemptionCallback": "callbacks",
    "SimulatedFaultParams": "..testing.fault",
    "StragglerDetectionCallback": "callbacks",
}

__all__ = list(_HOME)
__getattr__, __dir__ = names(__name__, _HOME, needs_torch=True)
