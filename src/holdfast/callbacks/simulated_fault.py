"""What a callback is given as the fault to simulate. Arming it: `holdfast.testing.injector`."""

from __future__ import annotations

from typing import Any

from holdfast.testing.injector import simulate
from holdfast.testing.simulated import SimulatedFaultParams

__all__ = ["SimulatedFaultParams", "parse_params", "simulate"]


def parse_params(params: Any) -> SimulatedFaultParams | None:
    """From what a callback is given: params, a dict, OmegaConf's DictConfig, or None.

    Raises ValueError, "Failed to parse simulated fault params, …".
    """
    return None if params is None else SimulatedFaultParams.parse(params)
