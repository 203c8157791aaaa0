"""A fault that an integration is asked to simulate, armed when training begins, and said in the documented words.

What always holds: the words come when the fault happens, from the rank where it does and from a thread of its own, to
stdout and stderr; a stream that is closed stops neither the training nor the fault.
Does not cover: faults at a step or in a place of the program; see `holdfast.testing`.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from holdfast.testing.fault import Fault
from holdfast.testing.injector import Faults, inject
from holdfast.testing.simulated import SimulatedFaultParams

_CHOSEN = {"kill": "rank_killed", "stop": "rank_hung"}
"""What `random` may have become, in the documented words."""


def simulate(params: SimulatedFaultParams) -> Faults:
    """Arm it on every rank; the one that is meant, and when, is the same everywhere without asking.

    Returns what disarms it: call `close`.
    """

    def announce(fault: Fault) -> None:
        kind = params.fault_type if params.fault_type != "random" else _CHOSEN[fault.kind]
        _say(f"\n####\nSimulating fault: {kind}; rank to fail: {fault.rank}\n#####\n")

    return inject(params, announce=announce)


def _say(text: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or a stand-in for one
            print(text, end="", file=stream, flush=True)
