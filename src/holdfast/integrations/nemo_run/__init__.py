"""NeMo-Run plugins: fault tolerance, preemption, straggler detection and W&B for a task and its executor.

Names, arguments and defaults are those of NeMo's `nemo.lightning.run.plugins`. What always holds: importing this
package loads nothing heavy; a plugin loads NeMo-Run when it is first asked for.
Does not cover: NeMo's other plugins, and clusters without Slurm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .callback_configs import straggler_det_callback_config as straggler_det_callback_config
    from .fault_tolerance_plugin import FaultTolerancePlugin as FaultTolerancePlugin
    from .launcher import FaultToleranceLauncher as FaultToleranceLauncher
    from .preemption_plugin import PreemptionPlugin as PreemptionPlugin
    from .wandb_plugin import WandbPlugin as WandbPlugin

_HOME = {
    "FaultToleranceLauncher": "launcher",
    "FaultTolerancePlugin": "fault_tolerance_plugin",
    "PreemptionPlugin": "preemption_plugin",
    "WandbPlugin": "wandb_plugin",
    "straggler_det_callback_config": "callback_configs",
}

__all__ = [
    "FaultToleranceLauncher",
    "FaultTolerancePlugin",
    "PreemptionPlugin",
    "WandbPlugin",
    "straggler_det_callback_config",
]

__getattr__, __dir__ = names(__name__, _HOME)
