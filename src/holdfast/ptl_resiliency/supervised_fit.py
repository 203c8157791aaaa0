"""One fit under supervision: what both fault-tolerance callbacks hold from `setup` to the fit's end.

What always holds: `end` gives everything back, may be called at any time and twice, and raises nothing. Does not
cover: what is learned; the callbacks decide that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.fault_tolerance import RankMonitorClientError
from holdfast.prefixed_log import Prefixed
from holdfast.testing.simulated import SimulatedFaultParams

from .early_stopping import EarlyStops
from .patches import Patches
from .simulated_fault import simulate
from .supervision import Supervision
from .whole_checkpoints import keep_whole

if TYPE_CHECKING:
    from holdfast.learned_limits.kept_limits import KeptLimits
    from holdfast.testing.injector import Faults


class SupervisedFit:
    """Made on all ranks together. Raises RuntimeError without `ft_launcher`."""

    def __init__(self, user: object, trainer: Any, log: Prefixed) -> None:
        self.user, self.trainer, self.log = user, trainer, log
        self.failed = False
        self.supervision = Supervision.join(user)
        self.client = self.supervision.client
        self.side = self.supervision.side
        self.rank = int(trainer.global_rank)
        self.patches = Patches()
        self.early_stops = EarlyStops(trainer)
        self.kept: KeptLimits | None = None
        self.ends_after_teardown = False
        """An exception ended the fit: Lightning calls the strategy's `teardown` next, and no `teardown` of ours."""
        self._faults: Faults | None = None
        self._told = False

    def begin(self, simulated: SimulatedFaultParams | None, at_the_end: Callable[[], None]) -> None:
        """Whole checkpoints from now on, and the fault that is asked for."""
        keep_whole(self.trainer, self.patches)
        self.patches.wrap(self.trainer.strategy, "teardown", self._after_strategy(at_the_end))
        if simulated is not None:
            self._faults = simulate(simulated)

    def beat(self, step: int | None = None) -> None:
        """A heartbeat; where supervision has ended meanwhile that is said, once."""
        try:
            self.client.heartbeat(step)
        except RankMonitorClientError as error:
            self.lost(error)

    def checkpoint_saved(self) -> None:
        """A checkpoint is complete."""
        if self.supervision.has_sections:
            return
        try:
            self.client.checkpoint_saved(int(self.trainer.global_step))
        except RankMonitorClientError as error:
            self.lost(error)

    def end(self) -> None:
        """No more supervision of this fit."""
        faults, self._faults = self._faults, None
        if faults is not None:
            faults.close()
        self.patches.undo()
        self.supervision.leave(self.user)

    def _after_strategy(self, at_the_end: Callable[[], None]) -> Callable[..., Any]:
        def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if self.ends_after_teardown:
                    at_the_end()

        return around

    def lost(self, error: Exception) -> None:
        """Say, once, that supervision has ended."""
        if not self._told:
            self._told = True
            self.log.warning("supervision has ended before the training: %s", error)
