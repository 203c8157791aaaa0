"""`RankMonitorClient`: what a training program calls to be supervised, and what it may ask of its launcher.

What always holds: only misuse raises (`RankMonitorClientError`). Supervision that fails is logged once and from then
on does nothing: where the board is missing, damaged or another process's, the rank runs on without reporting. Where the
user set an initial limit, the monitor still applies it: for all it can see, the rank has not begun. A heartbeat or
section edge is a few stores into shared memory: it waits for no other process, and the monitor may be slow, stopped or
gone.

A forked child (a data loader's worker) inherits the client as one that is not watched. Does not cover: a script that
never calls the client; its optimizer's steps are counted (`optimizer_steps`), and limits bind only where the user set
them. A program that removes the board's variable from its environment counts as not started by the launcher.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from holdfast.prefixed_log import log as _log

from . import environment, optimizer_steps
from .board import BoardWriter, Request
from .board.layout import REQUEST_ACTIONS
from .board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from .errors import BoardError, NotReady, RankMonitorClientError
from .timeouts.effective_timeouts import EffectiveTimeouts, configured_timeouts
from .timeouts.learned_timeouts import (
    HEARTBEAT,
    KEY,
    OUT_OF_SECTION,
    SECTION,
    Floors,
    HeartbeatTimeouts,
    SectionTimeouts,
)
from .timeouts.observed_durations import Intervals, longest_over_ranks

if TYPE_CHECKING:
    from .config import FaultToleranceConfig


class WorkloadAction(Enum):
    """Continue: nothing special. ExcludeThisNode: this node's launcher leaves the job, the others carry on if
    `--nnodes min:max` allows. ShutdownWorkload: the whole job ends and is not restarted."""

    Continue = 0
    ExcludeThisNode = 1
    ShutdownWorkload = 2


@dataclass
class WorkloadControlRequest:
    """An action and, in the program's own words, why. The launcher repeats the first 1024 bytes of the words."""

    action: WorkloadAction
    description: str = "no reason given"

    def __str__(self) -> str:
        return f"{self.action.name}: {self.description}"


class RankMonitorClient:
    """The rank's side of supervision; all methods may be called from any thread.

    With `required` (the default) `init_workload_monitoring` is an error when the program was not started by
    `ft_launcher`; with `required=False` everything then works without supervision. `learned_floors` overrides the
    least that learned limits may be (default 10 s, 300 s for the initial heartbeat and the section "setup";
    environment: HOLDFAST_LEARNED_FLOOR, HOLDFAST_LEARNED_INITIAL_FLOOR).
    """

    CURRENT_TIMEOUTS_STATE_KEY: ClassVar[str] = KEY
    """The key of `state_dict()` under which the learned limits are."""

    def __init__(self, required: bool = True, learned_floors: Floors | None = None) -> None:
        self._required = required
        self._limits = EffectiveTimeouts(learned_floors or environment.floors())
        self._intervals = Intervals()
        self._writer: BoardWriter | None = None
        self._unregister: Callable[[], object] | None = None
        self._started_ns = 0
        # Bound once: an attribute of the writer would cost the hot path two lookups more.
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
        writer = _attach(self._intervals, required=self._required)
        self._unregister = _register_for_dumps(writer) if writer.attached else None
        on_board = writer.limits
        self.cfg = environment.settings(os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, ""), on_board)
        self._limits.configure(
            configured_timeouts(self.cfg, initial_set_by_user=on_board.initial_set_by_user)
        )
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
        """End supervision; the rank may run as long as it likes. Does nothing if it has not begun."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._beat = self._open = self._close = _not_initialized
            writer.finish()
            if self._unregister is not None:
                self._unregister()
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
        writer = self._ready()
        identity = writer.identity
        started = identity.started_ns if identity else self._started_ns

        def measure() -> dict[str, float]:
            last = writer.last_heartbeat_ns
            return self._intervals.heartbeats(started, running_ns=monotonic_ns() - last if last else 0)

        return self._learn(HEARTBEAT, measure, None, skip_if_not_ready, process_group)

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
        writer = self._ready()
        known = self._limits.section.section if self._limits.section else {}
        names = selected_sections
        if names is not None and calc_out_of_section:
            names = [*names, OUT_OF_SECTION]

        def measure() -> dict[str, float]:
            out_since, opened, now = writer.out_of_section_since_ns, writer.opened_ns, monotonic_ns()
            seconds = self._intervals.sections(
                also=known,
                running_out_ns=now - out_since if out_since else 0,
                running_ns={name: now - since for name, since in opened.items()},
            )
            if not calc_out_of_section:
                del seconds[OUT_OF_SECTION]
            return seconds

        return self._learn(SECTION, measure, names, skip_if_not_ready, process_group)

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
            _log.warning("no launcher receives the request %r: this process has no board", str(req))
        writer.request(Request(REQUEST_ACTIONS[req.action.value], req.description))

    def _learn(
        self,
        part: str,
        measure: Callable[[], dict[str, float]],
        names: Collection[str] | None,
        skip: bool,
        group: Any,
    ) -> bool:
        """Learn the timeouts of these names, or of all that `measure` has; see `calculate_and_set_hb_timeouts`."""
        assert self.cfg is not None
        try:
            longest = longest_over_ranks(measure, group)
            # All ranks agreed on it: one logs it.
            log = self.rank_info is None or self.rank_info.global_rank <= 0
            names = sorted(longest) if names is None else names
            self._limits.learn(part, longest, names, self.cfg.safety_factor, log=log)
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


def _not_initialized(*_: object) -> NoReturn:
    raise RankMonitorClientError(
        "RankMonitorClient is not initialised; call init_workload_monitoring() first (and nothing after "
        "shutdown_workload_monitoring())"
    )


class Section:
    """`with client.section(name): ...`; may be entered again and again, not twice at once."""

    __slots__ = ("_client", "_name")

    def __init__(self, client: RankMonitorClient, name: str) -> None:
        self._client = client
        self._name = name

    def __enter__(self) -> None:
        self._client.start_section(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not end_section(): the body may have ended all sections, or supervision as a whole, and that is no error.
        if self._client.is_initialized:
            self._client._close(self._name)


_ATTACHED: weakref.WeakSet[BoardWriter] = weakref.WeakSet()


def _attach(intervals: Intervals, *, required: bool) -> BoardWriter:
    """This rank's writer; one over private memory where there is no board to write.

    Raises RankMonitorClientError if the environment names no board although one is `required`, and if another client
    of this process writes the board already.
    """
    path = os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
    if path is None:
        if required:
            raise RankMonitorClientError(
                f"{FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR} is not set: start the program with ft_launcher, or use "
                "RankMonitorClient(required=False) to run it without supervision"
            )
        return BoardWriter(None, intervals)
    optimizer_steps.give_way()
    if any(writer.attached for writer in _ATTACHED):
        raise RankMonitorClientError(
            "another RankMonitorClient of this process is initialised already; share it, or shut it down first"
        )
    try:
        writer = BoardWriter(path, intervals, on_new_section=_log_new_section)
    except BoardError as error:
        _log.warning(
            "this process (pid %d) does not report what it does: %s. A hang of it is not found; only a limit that the "
            "user set for the rank's first heartbeat still binds",
            os.getpid(),
            error,
        )
        return BoardWriter(None, intervals)
    _ATTACHED.add(writer)
    return writer


def _register_for_dumps(writer: BoardWriter) -> Callable[[], object] | None:
    """Let this process answer where it is (`launcher/ranks/prologue/introspection.py`). Returns what undoes that.

    A rank that is not the launcher's, or that has no torch.distributed, is registered in no other way.
    """
    try:
        from .launcher.ranks.prologue import introspection

        undo = introspection.connect(os.environ)
    except Exception as error:
        _log.debug("this process cannot be asked where it is: %r", error)
        return None
    if undo is None:
        return None
    finalizer = weakref.finalize(writer, undo)  # also where the client is just forgotten
    finalizer.atexit = False
    return finalizer


def _log_new_section(name: str) -> None:
    # All ranks open much the same sections: one warning is enough.
    level = logging.WARNING if os.environ.get("RANK", "0") == "0" else logging.INFO
    _log.log(
        level,
        "section %r has no limit: a hang in it is found by other limits only. Set one with "
        "--ft-rank-section-timeouts=%s:SECONDS, or let one be learned",
        name,
        name,
    )
