"""`RankMonitorClient`: what a training program calls to be supervised.

What always holds: only misuse raises (`RankMonitorClientError`); supervision that fails is said once in the log and
from then on does nothing. A heartbeat or section edge is a few stores into shared memory: it waits for nobody, and
the monitor may be slow, stopped or gone.

A forked child (a data loader's worker) inherits the client as one that nobody watches. Does not cover: a script that
never calls the client. Its optimizer's steps are counted (`optimizer_steps`), and limits bind only where the user set
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from . import agreement, environment, learned_state
from .attach import attach
from .board import BoardWriter
from .errors import NotReady, RankMonitorClientError
from .intervals import Intervals, with_running
from .learning import LimitsInForce
from .limits import Floors, HeartbeatTimeouts, SectionTimeouts
from .rank_log import log as _log
from .section import Section
from .workload_control import WorkloadControlRequest

if TYPE_CHECKING:
    from .config import FaultToleranceConfig


class RankMonitorClient:
    """The rank's side of supervision; all methods may be called from any thread.

    With `required` (the default) `init_workload_monitoring` is an error when the program was not started by
    `ft_launcher`; with `required=False` everything then works and nobody watches. `learned_floors` overrides the
    least that learned limits may be (default 10 s, 300 s for the initial heartbeat and the section "setup";
    environment: HOLDFAST_LEARNED_FLOOR, HOLDFAST_LEARNED_INITIAL_FLOOR).
    """

    CURRENT_TIMEOUTS_STATE_KEY: ClassVar[str] = learned_state.KEY
    """The key of `state_dict()` under which the learned limits are."""

    def __init__(self, required: bool = True, learned_floors: Floors | None = None) -> None:
        self._required = required
        self._limits = LimitsInForce(learned_floors or environment.floors())
        self._intervals = Intervals()
        self._writer: BoardWriter | None = None
        self._started_ns = 0
        # Bound once: an attribute of the writer would cost the hot path two look-ups more.
        self._beat: Callable[..., None] = _not_initialized
        self._open: Callable[[str], bool] = _not_initialized
        self._close: Callable[[str], bool] = _not_initialized
        self.cfg: FaultToleranceConfig | None = None
        """The settings in force; None before `init_workload_monitoring`."""
        self.rank_info: environment.RankInfo | None = None
        """Who this process is; None before `init_workload_monitoring`."""

    @property
    def is_initialized(self) -> bool:
        """True between `init_workload_monitoring` and `shutdown_workload_monitoring`."""
        return self._writer is not None

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts | None:
        """The heartbeat limits in force; None before `init_workload_monitoring`."""
        return self._limits.heartbeat

    @property
    def section_timeouts(self) -> SectionTimeouts | None:
        """The section limits in force; None before `init_workload_monitoring`."""
        return self._limits.section

    @property
    def loaded_hb_timeouts(self) -> HeartbeatTimeouts | None:
        """The heartbeat limits of the last state given to `load_state_dict`; None if no state had any."""
        return self._limits.loaded_heartbeat

    @property
    def loaded_section_timeouts(self) -> SectionTimeouts | None:
        """The section limits of the last state given to `load_state_dict`; None if no state had any."""
        return self._limits.loaded_section

    @property
    def timeouts(self) -> HeartbeatTimeouts | None:
        """`hb_timeouts`, under its name of NVRx before 0.3."""
        return self.hb_timeouts

    def init_workload_monitoring(self, num_warmup_iters: int = 0) -> None:
        """Begin supervision. `num_warmup_iters` changes nothing: newer programs give it, and leave the sections of so
        many steps out themselves. Raises RankMonitorClientError if it has begun already, in this client or another one
        of this process, or if the program was not started by `ft_launcher` (unless `required=False`)."""
        if self._writer is not None:
            raise RankMonitorClientError("this RankMonitorClient is initialised already; initialise it once")
        writer = attach(self._intervals, required=self._required)
        on_board = writer.limits
        self.cfg = environment.settings(os.environ.get(environment.BOARD, ""), on_board)
        self._limits.configure(environment.limits(self.cfg, initial_set_by_user=on_board.initial_set_by_user))
        writer.set_limits(self._limits.on_the_board())
        writer.connect()
        self.rank_info = environment.rank_info(writer.identity)
        self._started_ns = self._started_ns or monotonic_ns()
        self._writer, self._beat, self._open, self._close = (
            writer,
            writer.heartbeat,
            writer.start_section,
            writer.end_section,
        )

    def shutdown_workload_monitoring(self) -> None:
        """End supervision; the rank may go on as long as it likes. Does nothing if it has not begun."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._beat = self._open = self._close = _not_initialized
            writer.finish()
            writer.detach()

    def send_heartbeat(self) -> None:
        """The rank is alive. Raises RankMonitorClientError if not initialised."""
        self._beat()

    def heartbeat(self, step: int | None = None) -> None:
        """The rank is alive and at this step. Raises RankMonitorClientError if not initialised or `step` is none."""
        try:
            self._beat(step)
        except (TypeError, ValueError) as error:
            raise RankMonitorClientError(f"heartbeat(step={step!r}): a step is an integer") from error

    def start_section(self, name: str = "", *, section: str = "") -> None:
        """Open a section; sections may nest and overlap. A section without a configured limit has none until one is
        learned. Raises RankMonitorClientError if not initialised, if it is open already, or for a name that is none.
        """
        name = name or section
        try:
            opened = self._open(name)
        except (TypeError, ValueError) as error:
            raise RankMonitorClientError(f"start_section({name!r}): {error}") from error
        if not opened:
            raise RankMonitorClientError(
                f"section {name!r} is open already; close it with end_section() before it is opened again"
            )

    def end_section(self, name: str = "", *, section: str = "") -> None:
        """Close a section. Raises RankMonitorClientError if not initialised or if it is not open."""
        name = name or section
        if not self._close(name):
            raise RankMonitorClientError(f"section {name!r} is not open, so it cannot be closed")

    def end_all_sections(self) -> None:
        """Close whatever is open; nothing need be. Raises RankMonitorClientError if not initialised."""
        self._ready().end_all_sections()

    def section(self, name: str) -> Section:
        """`with client.section("step"): ...` closes the section also when an exception leaves it."""
        return Section(self, name)

    def mark(self, name: str, value: int = 0) -> None:
        """Put a mark of the program's own into the flight record. Raises RankMonitorClientError if not initialised."""
        self._ready().mark(name, value)

    def checkpoint_saved(self, step: int = 0) -> None:
        """A checkpoint is complete. Unneeded for one saved in a section "checkpointing": the end of that counts."""
        self._ready().checkpoint(step)

    def calculate_and_set_hb_timeouts(
        self, skip_if_not_ready: bool = False, *, process_group: Any = None
    ) -> bool:
        """Learn the heartbeat limits; they bind at once. Collective over `process_group`, which has all ranks of the
        job; None is the default one.

        The time since the last heartbeat counts as well, so that the learned limit is not passed at once.
        Ready when some rank has sent two heartbeats; otherwise False with `skip_if_not_ready`, else
        RankMonitorClientError, on every rank alike.
        """
        writer, factor = self._ready(), self._safety_factor()
        identity = writer.identity
        started = identity.started_ns if identity else self._started_ns

        def measure() -> dict[str, float]:
            last = writer.last_heartbeat_ns
            return self._intervals.heartbeats(started, running_ns=monotonic_ns() - last if last else 0)

        def learn() -> None:
            agreed = with_running(agreement.longest_over_ranks(measure, process_group))
            self._limits.learn_heartbeats(agreed, factor, tell=self._tells())

        return self._learned(learn, skip_if_not_ready)

    def calculate_and_set_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """`calculate_and_set_hb_timeouts`, under its name of NVRx before 0.3."""
        return self.calculate_and_set_hb_timeouts(skip_if_not_ready)

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
        *,
        process_group: Any = None,
    ) -> bool:
        """Learn the limits of the selected sections (None: of all that have a limit or were ever opened, by any
        rank) and of the time out of sections; they bind at once. Collective over `process_group`, which has all ranks
        of the job; None is the default one.

        The time that an open section has lasted counts as well, so that the learned limit is not passed at once.
        Ready when each of them was seen on some rank; otherwise False with `skip_if_not_ready`, else
        RankMonitorClientError, on every rank alike.
        """
        writer, factor = self._ready(), self._safety_factor()
        configured = self._limits.section.section if self._limits.section else {}

        def measure() -> dict[str, float]:
            out_since, opened, now = writer.out_of_section_since_ns, writer.opened_ns, monotonic_ns()
            return self._intervals.sections(
                also=configured,
                running_out_ns=now - out_since if out_since else 0,
                running_ns={name: now - since for name, since in opened.items()},
            )

        def learn() -> None:
            self._limits.learn_sections(
                with_running(agreement.longest_over_ranks(measure, process_group)),
                selected_sections,
                factor,
                out_of_section=calc_out_of_section,
                tell=self._tells(),
            )

        return self._learned(learn, skip_if_not_ready)

    def state_dict(self) -> dict[str, Any]:
        """The learned limits, JSON-serialisable and the same on every rank; at any time."""
        return self._limits.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the learned limits of an earlier job, of holdfast or NVRx; at any time, and at once in force. A damaged
        state is left out with a warning. Raises RankMonitorClientError if `state` is no mapping."""
        self._limits.load(state)
        if self._writer is not None:
            self._writer.set_limits(self._limits.on_the_board())

    def send_workload_control_request(self, req: WorkloadControlRequest) -> None:
        """Ask the launcher for something about the whole job. It acts at once: for anything but `Continue` it stops the
        ranks, this one included, so save first what must be saved. Raises RankMonitorClientError if not initialised or
        if `req` is no WorkloadControlRequest."""
        writer = self._ready()
        if not isinstance(req, WorkloadControlRequest):
            raise RankMonitorClientError(f"a WorkloadControlRequest is needed, not {type(req).__name__}")
        if not writer.attached:
            _log.warning("nobody receives the request %r: this process has no board", str(req))
        writer.request(req.on_the_board())

    def _learned(self, learn: Callable[[], None], skip: bool) -> bool:
        try:
            learn()
        except NotReady:
            if skip:
                return False
            raise
        self._ready().set_limits(self._limits.on_the_board())
        return True

    def _ready(self) -> BoardWriter:
        if self._writer is None:
            _not_initialized()
        return self._writer

    def _safety_factor(self) -> float:
        assert self.cfg is not None
        return self.cfg.safety_factor

    def _tells(self) -> bool:
        # What all ranks agreed on is said by one.
        return self.rank_info is None or self.rank_info.global_rank <= 0


def _not_initialized(*_: object) -> NoReturn:
    raise RankMonitorClientError(
        "RankMonitorClient is not initialised; call init_workload_monitoring() first (and nothing after "
        "shutdown_workload_monitoring())"
    )
