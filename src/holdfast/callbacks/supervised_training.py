"""One training under supervision: what a fault-tolerance callback of any framework holds from its begin to its end.

What always holds: `end` gives everything back, may be called at any time and twice, and raises nothing. Does not
cover: which hook of the framework calls what; when limits are learned (`learning_limits`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.callbacks.completion import create_flag, flag_path, why_no_flag
from holdfast.fault_tolerance import RankMonitorClient, RankMonitorClientError
from holdfast.fault_tolerance.timeouts.kept_timeouts import KeptTimeouts
from holdfast.fault_tolerance.timeouts.learning_conditions import SECTIONS
from holdfast.prefixed_log import Prefixed
from holdfast.testing.injector import simulate
from holdfast.testing.simulated import SimulatedFaultParams

from .supervision import Supervision, why_no_launcher

if TYPE_CHECKING:
    from holdfast.testing.injector import Faults


class NoFlagError(RuntimeError, SystemExit):
    """`autoresume` is True, and nothing names the flag. It ends a rank with 1 and no traceback: rank 0 has said it."""

    code = 1


def verify_environment(who: str, *, autoresume: bool, rank: int, log: Prefixed) -> None:
    """Raises RuntimeError, with what to do, without `ft_launcher`; NoFlagError without the flag `autoresume` needs."""
    no_flag = why_no_flag() if autoresume else ""
    missing = " ".join(filter(None, [no_flag, why_no_launcher(who)]))
    if no_flag:
        if rank == 0:
            log.error("%s", missing)
        raise NoFlagError(missing)
    if missing:
        raise RuntimeError(missing)


def verify_sections(client: RankMonitorClient) -> None:
    """Raises ValueError, with what to do, unless there are limits for exactly the three sections."""
    configured = client.cfg.rank_section_timeouts if client.cfg else {}
    if set(configured) != set(SECTIONS):
        raise ValueError(
            f"rank_section_timeouts should contain {{{', '.join(map(repr, sorted(SECTIONS)))}}} entries, and "
            f"nothing else; it has {sorted(configured) or 'none'}. Give ft_launcher the limits in seconds, for "
            "example --ft-rank-section-timeouts=setup:600,step:180,checkpointing:420"
        )


class SupervisedTraining:
    """Made on all ranks together. Raises RankMonitorClientError without `ft_launcher`."""

    def __init__(self, user: object, rank: int, log: Prefixed) -> None:
        self.user, self.rank, self.log = user, rank, log
        self.failed = False
        self.supervision = Supervision.join(user)
        self.client = self.supervision.client
        self.side = self.supervision.side
        self.kept: KeptTimeouts | None = None
        self._faults: Faults | None = None
        self._told = False

    def load_limits(
        self,
        path: Path,
        part: str,
        *,
        calculate: bool,
        limits: Callable[[], Any],
        has_limits: Callable[[], bool],
    ) -> None:
        """Those that earlier jobs have learned, if they are to be calculated. Collective.

        Raises RuntimeError if there are no limits at all and none will be learned; ValueError if the folder of `path`
        cannot be had.
        """
        self.kept = KeptTimeouts(path, part, self.side, self.log)
        self.log.info("Fault tolerance dir: %s", path.parent)
        if calculate and self.kept.load_into(self.client):
            self.log.info("Fault tolerance timeouts loaded: %s", limits())
        if has_limits():
            self.log.info("Fault tolerance client initialized. Timeouts: %s", limits())
        elif calculate:
            self.log.info("Fault tolerance client initialized. Timeouts: not calculated yet.")
        else:
            raise RuntimeError(
                "Fault tolerance doesn't have valid timeouts set and 'calculate_timeouts' is False."
            )

    def keep_learned(self, limits: Any) -> None:
        """The client has learned these; the next job shall have them."""
        assert self.kept is not None
        self.kept.write(self.client)
        self.log.info("Updated FT timeouts. New values: %s", limits)

    def simulate(self, params: SimulatedFaultParams | None) -> None:
        """Arm the fault that is asked for."""
        if params is not None:
            self._faults = simulate(params)

    def beat(self, step: int | None = None) -> None:
        """A heartbeat; where supervision has ended meanwhile that is said, once."""
        try:
            self.client.heartbeat(step)
        except RankMonitorClientError as error:
            self.lost(error)

    def saved(self, step: int) -> None:
        """A checkpoint of this step is complete."""
        if self.supervision.has_sections:
            return
        try:
            self.client.checkpoint_saved(step)
        except RankMonitorClientError as error:
            self.lost(error)

    def create_flag(self) -> None:
        """The file that FAULT_TOL_FINISHED_FLAG_FILE names, if it names one."""
        path = flag_path()
        if path is not None:
            create_flag(path, self.log)

    def end(self) -> None:
        """No more supervision of this training."""
        faults, self._faults = self._faults, None
        if faults is not None:
            faults.close()
        self.supervision.leave(self.user)

    def lost(self, error: Exception) -> None:
        """Say, once, that supervision has ended."""
        if not self._told:
            self._told = True
            self.log.warning("supervision has ended before the training: %s", error)
