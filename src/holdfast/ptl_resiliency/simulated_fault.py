"""A fault that a callback is asked to simulate, armed when training begins.

Does not cover: faults at a step or in a place of the program; see `holdfast.testing`.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast.testing.injector import Faults, inject
from holdfast.testing.simulated import SimulatedFaultParams

__all__ = ["SimulatedFaultParams", "parse_params", "simulate"]


def parse_params(params: Any) -> SimulatedFaultParams | None:
    """From what a callback is given: params, a dict, OmegaConf's DictConfig, or None.

    Raises ValueError, "Failed to parse simulated fault params, …".
    """
    return None if params is None else SimulatedFaultParams.parse(params)


def simulate(params: SimulatedFaultParams, rank: int) -> Faults:
    """Arm it on every rank; the one that is meant, and when, is the same everywhere without asking.

    Returns what disarms it: call `close`.
    """
    text = (
        f"\n####\nSimulating fault: {params.fault_type}; rank to fail: {_meant(params)}\n#####\n"
        if rank == 0
        else ""
    )
    for stream in (sys.stdout, sys.stderr):
        print(text, end="", file=stream, flush=True)
    return inject(params)


def _meant(params: SimulatedFaultParams) -> str:
    return "one at random" if params.rank_to_fail is None else str(params.rank_to_fail)
