"""NeMo-Run plugins: fault tolerance, preemption, straggler detection and W&B for a task and its executor.

Names, arguments and defaults are those of NeMo's `nemo.lightning.run.plugins`. What always holds: importing this
package loads nothing heavy; a plugin loads NeMo-Run when it is first asked for.
Does not cover: NeMo's other plugins, and clusters without Slurm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .plugins import FaultToleranceLauncher as FaultToleranceLauncher
    from .plugins import FaultTolerancePlugin as FaultTolerancePlugin
    from .plugins import PreemptionPlugin as PreemptionPlugin
    from .plugins import WandbPlugin as WandbPlugin
    from .plugins import straggler_det_callback_config as straggler_det_callback_config

__all__ = [
    "FaultToleranceLauncher",
    "FaultTolerancePlugin",
    "PreemptionPlugin",
    "WandbPlugin",
    "straggler_det_callback_config",
]

__getattr__, __dir__ = names(__name__, dict.fromkeys(__all__, "plugins"))
