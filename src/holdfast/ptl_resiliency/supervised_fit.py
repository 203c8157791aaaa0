"""One fit under supervision: what both fault-tolerance callbacks hold from `setup` to the fit's end.

What always holds: `end` gives everything back, may be called at any time and twice, and raises nothing. Does not
cover: what is learned; the callbacks decide that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.callbacks.supervised_training import SupervisedTraining
from holdfast.patches import Patches
from holdfast.prefixed_log import Prefixed
from holdfast.testing.simulated import SimulatedFaultParams

from .each_step import EachStep
from .early_stopping import EarlyStops
from .whole_checkpoints import keep_whole

if TYPE_CHECKING:
    from holdfast.fault_tolerance.board import BoardWriter


class SupervisedFit(SupervisedTraining):
    """Made on all ranks together. Raises RankMonitorClientError without `ft_launcher`."""

    def __init__(self, user: object, trainer: Any, log: Prefixed) -> None:
        super().__init__(user, int(trainer.global_rank), log)
        self.trainer = trainer
        self.patches = Patches()
        self.each = EachStep.of(trainer, self)
        self.early_stops = EarlyStops(trainer)
        self.ends_after_teardown = False
        """An exception ended the fit: Lightning calls the strategy's `teardown` next, and no `teardown` of ours."""

    def begin(self, simulated: SimulatedFaultParams | None, at_the_end: Callable[[], None]) -> None:
        """Whole checkpoints from now on, and the fault that is asked for."""
        keep_whole(self.trainer, self.patches)
        self.patches.wrap(self.trainer.strategy, "teardown", self._after_strategy(at_the_end))
        self.simulate(simulated)

    @property
    def writer(self) -> BoardWriter:
        """The client's, for what is done in each step. Raises RankMonitorClientError when supervision has ended."""
        return self.client._ready()

    def checkpoint_saved(self) -> None:
        """A checkpoint is complete."""
        self.saved(int(self.trainer.global_step))

    def end(self) -> None:
        """No more supervision of this fit."""
        self.patches.undo()
        self.each.leave(self.trainer, self)
        super().end()

    def _after_strategy(self, at_the_end: Callable[[], None]) -> Callable[..., Any]:
        def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if self.ends_after_teardown:
                    at_the_end()

        return around
