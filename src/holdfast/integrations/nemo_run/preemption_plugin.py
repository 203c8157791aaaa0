"""`PreemptionPlugin`: Slurm's signal before the time limit, and the callback that answers it.

Does not cover: what saves the checkpoint; that is `holdfast.ptl_resiliency.PreemptionCallback`, or the callbacks given.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from signal import SIGTERM, Signals
from typing import Any

import nemo_run

from holdfast.ptl_resiliency import PreemptionCallback

from .callback_configs import add_callbacks

__all__ = ["PreemptionPlugin"]

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class PreemptionPlugin(nemo_run.Plugin):  # type: ignore[misc]
    """Slurm sends `sig` to the job `preempt_time` seconds before its time limit; the training saves and ends.

    A `run.Script` stays as it is, with a warning: only the script itself can answer the signal.

    preempt_time: seconds before the time limit. Slurm may send it up to 60 s earlier.
    sig: the signal, or its number.
    callbacks: configs to put into the trainer in place of `PreemptionCallback(sig)`.
    """

    preempt_time: int = 60
    sig: int = SIGTERM
    callbacks: list[Any] | None = None

    def setup(self, task: Any, executor: Any) -> None:
        """Raises ValueError for a time or a signal that is none, or a task without a trainer."""
        sig = self._checked()
        if isinstance(task, nemo_run.Script):
            log.warning(
                "PreemptionPlugin changes nothing for a run.Script. Let the script handle the signal, and set "
                "executor.signal = '%d@%d'.",
                sig,
                self.preempt_time,
            )
            return
        if isinstance(executor, nemo_run.SlurmExecutor):
            executor.signal = f"{sig.value}@{self.preempt_time}"
        # The number: a plugin that comes later, such as WandbPlugin, may have to write the task as YAML.
        ours = [nemo_run.Config(PreemptionCallback, sig=sig.value)]
        add_callbacks(task, self.callbacks or ours, type(self).__name__)

    def _checked(self) -> Signals:
        if (
            isinstance(self.preempt_time, bool)
            or not isinstance(self.preempt_time, int)
            or self.preempt_time < 1
        ):
            raise ValueError(f"preempt_time must be a whole number of seconds, not {self.preempt_time!r}")
        try:
            return Signals(self.sig)
        except ValueError:
            raise ValueError(f"sig must be a signal, like signal.SIGTERM, not {self.sig!r}") from None
