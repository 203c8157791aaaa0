"""`FaultToleranceCallback`: a training's heartbeats, limits learned from them, and the flag for auto-resume.

What always holds: heartbeats are sent in `fit` only, with every batch and with the step; the limits are learned at most
once, at the end, by all ranks or by none. Does not cover: sections; `FaultToleranceSectionsCallback` may be in the
same trainer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from holdfast.callbacks.arguments import described
from holdfast.callbacks.learning_limits import learn_heartbeats
from holdfast.fault_tolerance.timeouts import learned_timeouts
from holdfast.fault_tolerance.timeouts.learning_conditions import HeartbeatRules

from .checkpoints import when_complete
from .supervised_callback import SupervisedCallback, SupervisedFit

__all__ = ["FaultToleranceCallback"]


class FaultToleranceCallback(SupervisedCallback):
    """Sends heartbeats to the launcher's monitor while the trainer fits.

    The constructor describes the arguments. What `setup` raises is described there.
    """

    TIMEOUTS_FILENAME: ClassVar[str] = "_ft_state.json"
    PART: ClassVar[str] = learned_timeouts.HEARTBEAT

    @described
    def __init__(
        self,
        autoresume: bool | None = None,
        calculate_timeouts: bool = True,
        simulated_fault_params: Any | None = None,
        exp_dir: str | Path | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceCallback",
    ) -> None:
        super().__init__(autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name)
        self._rules = HeartbeatRules()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """A heartbeat."""
        super().on_train_start(trainer, pl_module)
        self._beat()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A heartbeat, with the steps that are done."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._fit is not None:
            self._fit.beat(int(trainer.global_step))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A heartbeat."""
        self._beat()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A heartbeat before a checkpoint is written."""
        self._beat()
        if self._fit is not None:
            self._rules.iterations = self._fit.batches
        self._rules.saved()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The fit continues from a checkpoint."""
        self._rules.loaded = True

    def _begin(self, fit: SupervisedFit) -> None:
        self._rules = HeartbeatRules()
        when_complete(fit.trainer, fit.patches, lambda: fit.saved(int(fit.trainer.global_step)))

    def _conclude(self, fit: SupervisedFit, *, stopped: bool) -> None:
        self._beat()
        self._rules.iterations = fit.batches
        if self.calculate_timeouts:
            learn_heartbeats(fit, self._rules, stopped=stopped)

    def _failed(self, fit: SupervisedFit, exception: BaseException) -> None:
        self._beat()
        self._rules.failed = True

    def _has_limits(self, fit: SupervisedFit) -> bool:
        limits = fit.client.hb_timeouts
        return limits is not None and limits.are_valid

    def _limits(self, fit: SupervisedFit) -> Any:
        return fit.client.hb_timeouts

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        return {**super().__getstate__(), "_rules": HeartbeatRules()}

    def _beat(self) -> None:
        fit = self._fit
        if fit is not None:
            self._rules.other_beats += 1
            # Those of batches come at their begin: what the last one has done is known after it.
            fit.beat(int(fit.trainer.global_step) if fit.batches else None)
