"""The documented constructor of the fault-tolerance callbacks, the same for every framework.

What always holds: arguments that cannot be meant are refused when the callback is made, not when the training begins.

Does not cover: what the arguments do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import arguments
from .simulated_fault import parse_params

if TYPE_CHECKING:
    from holdfast.testing.simulated import SimulatedFaultParams


class DocumentedArguments:
    """A callback's arguments, as attributes of their names."""

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: SimulatedFaultParams | dict[str, Any] | Any | None = None,
        exp_dir: str | Path | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceCallback",
    ) -> None:
        """Raises ValueError."""
        self.autoresume = arguments.flag("autoresume", autoresume)
        self.calculate_timeouts = arguments.flag("calculate_timeouts", calculate_timeouts)
        self.simulated_fault_params = parse_params(simulated_fault_params)
        self.exp_dir = arguments.folder(exp_dir)
        self.logger_name = logger_name
