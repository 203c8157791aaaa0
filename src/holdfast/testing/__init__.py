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
    from .fault import KINDS as KINDS
    from .fault import Fault as Fault
    from .fault import FaultSpecError as FaultSpecError
    from .fault import InjectedFault as InjectedFault
    from .fault import SimulatedFaultParams as SimulatedFaultParams
    from .fault import parse as parse
    from .injector import Faults as Faults
    from .injector import inject as inject

_HOME = {
    "Fault": "fault",
    "Faults": "injector",
    "inject": "injector",
    "parse": "fault",
    "KINDS": "fault",
    "SimulatedFaultParams": "fault",
    "FaultSpecError": "fault",
    "InjectedFault": "fault",
}

__all__ = list(_HOME)
__getattr__, __dir__ = names(__name__, _HOME)
