"""`FaultToleranceCallback`: a training's heartbeats, limits learned from them, and the flag for auto-resume.

What always holds: heartbeats are sent in `train` only, after every optimizer step with the step; the limits are learned
at most once, at the end, by all ranks or by none. Does not cover: sections; `FaultToleranceSectionsCallback` may be in
the same trainer.
"""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.callbacks.learning_limits import learn_heartbeats
from holdfast.callbacks.supervised_training import SupervisedTraining
from holdfast.fault_tolerance.timeouts.learned_timeouts import HEARTBEAT
from holdfast.fault_tolerance.timeouts.learning_conditions import HeartbeatRules
from holdfast.testing.simulated import SimulatedFaultParams

from .supervised_callback import SupervisedCallback
from .train_call import TrainCall

__all__ = ["FaultToleranceCallback", "SimulatedFaultParams"]


class FaultToleranceCallback(SupervisedCallback):
    """Sends heartbeats to the launcher's monitor while the trainer trains.

    The constructor describes the arguments. What the begin of `train` raises is described at `begin`.
    """

    TIMEOUTS_FILENAME: ClassVar[str] = "_ft_state.json"
    PART: ClassVar[str] = HEARTBEAT
    _rules = HeartbeatRules()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        super().on_train_begin(args, state, control)
        self._beat()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat with the step."""
        if self._run is not None:
            self._rules.iterations += 1
            self._run.beat(state.global_step)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat, where gradients are accumulated."""
        self._beat()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def _begin(self, run: SupervisedTraining, training: TrainCall) -> None:
        self._rules = rules = HeartbeatRules()

        def before() -> None:
            self._beat()
            rules.saved()

        def after() -> None:
            run.saved(training.step)
            self._beat()

        training.checkpoints.before.append(before)
        training.checkpoints.after.append(after)
        training.on_resume.append(lambda: setattr(rules, "loaded", True))

    def _beat(self) -> None:
        if self._run is not None:
            self._rules.other_beats += 1
            self._run.beat()

    def _conclude(self, run: SupervisedTraining, *, stopped: bool) -> None:
        self._beat()
        if self.calculate_timeouts:
            learn_heartbeats(run, self._rules, stopped=stopped)

    def _failed(self, run: SupervisedTraining, error: BaseException) -> None:
        self._beat()
        self._rules.failed = True
        run.side.close()  # the others, should they ask this rank, then need not wait for it

    def _has_limits(self, run: SupervisedTraining) -> bool:
        limits = run.client.hb_timeouts
        return limits is not None and limits.are_valid

    def _limits(self, run: SupervisedTraining) -> Any:
        return run.client.hb_timeouts
