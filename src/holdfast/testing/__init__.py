"""Faults to inject into a training job, to see it recover: part of the product, for users' tests and for ours.

    HOLDFAST_FAULT='hang@step=12,rank=1' ft_launcher --nproc-per-node=2 train.py     # train.py: see Faults
    HOLDFAST_FAULT='kill@after=5s' ft_launcher --nproc-per-node=2 -m holdfast.testing train.py   # any train.py

Importing it imports no torch. The kinds are in `holdfast.testing.fault.KINDS`, the text form is in
`holdfast.testing.fault`; docs/testing-your-recovery.md is the page to start with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from holdfast.testing.fault import KINDS, Fault, FaultSpecError, InjectedFault, parse
    from holdfast.testing.injector import Faults, inject
    from holdfast.testing.simulated import SimulatedFaultParams

__all__ = [
    "Fault",
    "Faults",
    "inject",
    "parse",
    "KINDS",
    "SimulatedFaultParams",
    "FaultSpecError",
    "InjectedFault",
]

_HOME = {
    "Fault": "fault",
    "KINDS": "fault",
    "Faults": "injector",
    "inject": "injector",
    "parse": "fault",
    "SimulatedFaultParams": "simulated",
    "FaultSpecError": "fault",
    "InjectedFault": "fault",
}

__getattr__, __dir__ = names(__name__, _HOME)
