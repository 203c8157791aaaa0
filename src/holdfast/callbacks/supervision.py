"""One training under supervision: heartbeats or sections, learned limits, the finished flag, what a failure asks for.

`HeartbeatTraining` and `SectionTraining` are what a fault-tolerance callback of any framework holds from the begin of a
training to its end. The trainings of one process share one `RankMonitorClient` and a side group of the ranks.

What always holds: the errors of a wrong start are raised when the object is made; from then on nothing raises because
supervision fails, which is logged once. Limits are learned by all ranks or by none. An evaluation by itself learns
nothing, creates no flag, and asks no other rank anything: it may be of one rank only.
Does not cover: which hook calls what; a client that the program has made itself: only one may write the board, so that
is an error of the client's own; exceptions of other ranks, as each rank's policy sees its own.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar

from holdfast.fault_tolerance import (
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
)
from holdfast.fault_tolerance.timeouts import kept_timeouts
from holdfast.fault_tolerance.timeouts.learned_timeouts import HEARTBEAT, SECTION
from holdfast.fault_tolerance.timeouts.learning_conditions import (
    SECTIONS,
    SETUP,
    STEP,
    HeartbeatRules,
    SectionRules,
    Selection,
    is_clean_stop,
)
from holdfast.prefixed_log import Once, Prefixed
from holdfast.side_group import SideGroup
from holdfast.testing.injector import simulate

from .arguments import FaultToleranceArguments, SectionsArguments, named, verify_environment
from .completion import create_flag, flag_path, remove_flag

log = logging.getLogger("holdfast.callbacks")


class Supervision:
    """What the trainings of one process share. Get it with `join`; every `join` is followed by one `leave`."""

    _current: ClassVar[Supervision | None] = None

    def __init__(self) -> None:
        self.client = RankMonitorClient()
        self.client.init_workload_monitoring()
        self.side: SideGroup | None = None
        """Of all ranks; made by the first training, as an evaluation may be of this rank only."""
        self.has_sections = False
        """A callback opens sections: the end of a "checkpointing" one says that a checkpoint is complete."""
        self._users: list[object] = []

    @classmethod
    def join(cls, user: object) -> Supervision:
        """Begin supervision, or take part in it.

        Raises RankMonitorClientError if the program was not started by `ft_launcher`.
        """
        current = cls._current
        if current is None or not current.client.is_initialized:
            current = cls._current = cls()
        current._users.append(user)
        return current

    def leave(self, user: object) -> None:
        """No more of this user; the last one ends supervision. May be called twice."""
        self._users = [each for each in self._users if each is not user]
        if self._users:
            return
        if Supervision._current is self:
            Supervision._current = None
        if self.side is not None:
            try:
                self.side.close()
            except Exception as error:
                log.warning("the side group of supervision ended badly: %s", error)
        try:
            if self.client.is_initialized:
                self.client.end_all_sections()
            self.client.shutdown_workload_monitoring()
        except Exception as error:
            log.warning("supervision ended badly: %s", error)


class SupervisedTraining(ABC):
    """From its begin to its end, of one kind of supervision. Made on all ranks together, but for an evaluation."""

    part: ClassVar[str]
    """Which part of the limits it learns."""
    rules: HeartbeatRules | SectionRules
    """What it has seen so far."""

    def __init__(
        self,
        arguments: FaultToleranceArguments,
        rank: int,
        folder: Path,
        step: Callable[[], int],
        *,
        evaluates: bool = False,
    ) -> None:
        """Begin supervision.

        Args:
            arguments: The callback, which names itself in errors by its class.
            rank: This rank.
            folder: Where limits are kept.
            step: The optimizer steps that are done, of earlier starts as well.
            evaluates: It is an evaluation by itself, no training.

        Raises:
            RuntimeError: Without `ft_launcher`; of a training, without any limits and none to be learned.
            NoFlagError: `autoresume` needs FAULT_TOL_FINISHED_FLAG_FILE.
            ValueError: The folder cannot be had, or the limits are not those of the three sections.
            RankMonitorClientError: The program uses a client of its own.
        """
        self.log = Prefixed(named(arguments.logger_name), rank)
        if not evaluates:
            verify_environment(arguments, rank, self.log)
            if rank == 0 and arguments.makes_flag:
                # Before the side group: no rank can have failed and made it for a shutdown.
                remove_flag(flag_path(), self.log)
        self._arguments, self._rank, self._step, self._evaluates = arguments, rank, step, evaluates
        self._faults: Any = None
        self._once = Once(self.log)
        self.supervision = Supervision.join(self)
        self.client = self.supervision.client
        try:
            if evaluates:
                self.side = SideGroup(alone=True)
            else:
                self.side = self.supervision.side = self.supervision.side or SideGroup()
            self._load_limits(folder / arguments.TIMEOUTS_FILENAME)
            self._begin()
            if arguments.simulated_fault_params is not None and not evaluates:
                self._faults = simulate(arguments.simulated_fault_params)
        except BaseException:
            self.end()
            raise

    def finish(self, why_complete: Callable[[], str]) -> None:
        """A training has ended without an exception. Raises nothing. Collective.

        Args:
            why_complete: In which way the training is complete, see `completion.why_complete`.
        """
        if self._evaluates:
            return
        try:
            self._conclude(stopped=False)
            if self._arguments.makes_flag and (why := why_complete()):
                self.log.info("Training is complete (%s), so creating finished flag file.", why)
                if self._rank == 0:
                    create_flag(flag_path(), self.log)
        except Exception as error:
            self.log.warning("the end of supervision failed: %r", error)

    def fail(self, error: BaseException) -> None:
        """An exception ends it: a failure, or a clean stop like `sys.exit(0)`. Raises nothing."""
        if self._evaluates:
            return
        self.rules.failed = not is_clean_stop(error)
        try:
            if self.rules.failed:
                self._fail(error)
            else:
                self._conclude(stopped=True)
        except Exception as problem:
            self.log.warning("the end of supervision failed: %r", problem)
        finally:
            if self.rules.failed:
                self.side.close()  # the others, should they ask this rank, then need not wait for it

    def end(self) -> None:
        """No more supervision of this training."""
        faults, self._faults = self._faults, None
        if faults is not None:
            faults.close()
        self.supervision.leave(self)

    @abstractmethod
    def _begin(self) -> None:
        """What this kind needs. May raise what the constructor does."""

    @abstractmethod
    def _conclude(self, *, stopped: bool) -> None:
        """Learn what can be learned at a clean end; `stopped` by an exception. Collective."""

    @abstractmethod
    def _fail(self, error: BaseException) -> None:
        """A failure has ended the training on this rank."""

    @abstractmethod
    def _limits(self) -> Any:
        """The limits in force, for people; nothing without any."""

    def _load_limits(self, path: Path) -> None:
        """Those that earlier trainings have learned, if they are to be calculated. Collective.

        An evaluation by itself has the configured ones: no training has seen how long its batches take.
        """
        calculate = self._arguments.calculate_timeouts and not self._evaluates
        self._kept = kept_timeouts.KeptTimeouts(path, self.part, self.side, self.log)
        self.log.info("Fault tolerance dir: %s", path.parent)
        if calculate and self._kept.load_into(self.client):
            self.log.info("Fault tolerance timeouts loaded: %s", self._limits())
        if limits := self._limits():
            self.log.info("Fault tolerance client initialized. Timeouts: %s", limits)
        elif calculate or self._evaluates:
            self.log.info("Fault tolerance client initialized. Timeouts: not calculated yet.")
        else:
            raise RuntimeError(
                "Fault tolerance doesn't have valid timeouts set and 'calculate_timeouts' is False."
            )

    def _keep_learned(self) -> None:
        """The client has learned limits; the next job shall have them."""
        self._kept.write(self.client)
        self.log.info("Updated FT timeouts. New values: %s", self._limits())

    def _do(self, call: Callable[..., object], *arguments: Any) -> bool:
        """A call of the client; where supervision has ended meanwhile that is logged, once. Whether it was done."""
        try:
            call(*arguments)
        except RankMonitorClientError as error:
            self._once(logging.WARNING, self._loss, error)
            return False
        return True

    _loss: ClassVar[str] = "supervision has ended before the training: %s"


class HeartbeatTraining(SupervisedTraining):
    """A training that sends heartbeats, with the steps that are done."""

    part = HEARTBEAT
    rules: HeartbeatRules

    def iterate(self) -> None:
        """A training iteration more, which is a heartbeat."""
        self.rules.iterations += 1
        self._send()

    def beat(self) -> None:
        """A heartbeat at another moment."""
        self.rules.other_beats += 1
        self._send()

    def saving(self) -> None:
        """A heartbeat before a checkpoint is written."""
        self.beat()
        self.rules.saved()

    def saved(self) -> None:
        """A checkpoint is complete."""
        if not self.supervision.has_sections:
            self._do(self.client.checkpoint_saved, self._step())

    def _begin(self) -> None:
        self.rules = HeartbeatRules()

    def _send(self) -> None:
        self._do(self.client.heartbeat, self._step() if self.rules.iterations else None)

    def _conclude(self, *, stopped: bool) -> None:
        self.beat()
        if not self._arguments.calculate_timeouts:
            return
        (agreed,) = kept_timeouts.wanted_by_all(
            self.side,
            [self.rules.may_learn and self.client.is_initialized],
            self.log,
            patience=kept_timeouts.PATIENCE_AT_A_STOP if stopped else kept_timeouts.PATIENCE,
            meanwhile=self._send,
        )
        if not agreed:
            self.log.info(
                "The FT timeouts are not updated: %s",
                self.rules.why_not() or "not every rank has seen enough",
            )
            return
        self.log.info("Updating FT timeouts...")
        calculate = partial(
            self.client.calculate_and_set_hb_timeouts,
            skip_if_not_ready=True,
            process_group=self.side.process_group,
        )
        if kept_timeouts.learn(calculate, self.log):
            self.rules.learned = True
            self._keep_learned()

    def _fail(self, error: BaseException) -> None:
        self.beat()

    def _limits(self) -> Any:
        limits = self.client.hb_timeouts
        return limits if limits is not None and limits.are_valid else None


class SectionTraining(SupervisedTraining):
    """A training that reports its sections setup, step and checkpointing.

    A section that the program opened under the same name costs a warning and no more; only what was opened here is
    closed here.
    """

    part = SECTION
    rules: SectionRules
    _arguments: SectionsArguments
    _loss: ClassVar[str] = "a section of the training is not supervised: %s"

    def begin_step(self) -> None:
        """A step begins, and with the first one the setup is over."""
        self._close(SETUP)
        self._open(STEP)

    def end_step(self) -> None:
        """The step is over."""
        self._close(STEP)

    def learn_if_due(self) -> None:
        """After a step: where a checkpoint was saved, learn. Collective then."""
        if self.rules.due:
            self._learn(final=False)

    def close_all(self) -> None:
        """After an exception."""
        for name in list(self._opened):
            self._close(name)

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """In this section, which an exception closes as well; with a step the setup is over.

        Within itself it opens nothing. Nor in another thread: two in one section could not tell whose end closes it.
        """
        if name == STEP:
            self._close(SETUP)
        opened = get_ident() == self._thread and self._open(name)
        try:
            yield
        finally:
            if opened:
                self._close(name)

    def _begin(self) -> None:
        configured = self.client.cfg.rank_section_timeouts if self.client.cfg else {}
        if set(configured) != set(SECTIONS) and not self._evaluates:
            raise ValueError(
                f"rank_section_timeouts should contain {{{', '.join(map(repr, sorted(SECTIONS)))}}} entries, and "
                f"nothing else; it has {sorted(configured) or 'none'}. Give ft_launcher the limits in seconds, for "
                "example --ft-rank-section-timeouts=setup:600,step:180,checkpointing:420"
            )
        self.rules = SectionRules()
        self._opened: set[str] = set()
        self._thread = get_ident()
        self.supervision.has_sections = True
        self._open(SETUP)

    def _open(self, name: str) -> bool:
        """Whether it is open now by this call."""
        if name in self._opened or not self._do(self.client.start_section, name):
            return False
        self._opened.add(name)
        return True

    def _close(self, name: str) -> None:
        """What is not open is left alone."""
        if name in self._opened:
            self._opened.discard(name)
            self._do(self.client.end_section, name)

    def _conclude(self, *, stopped: bool) -> None:
        self.close_all()
        self._learn(final=True, stopped=stopped)

    def _fail(self, error: BaseException) -> None:
        self.close_all()
        if self._arguments.calculate_timeouts:
            self._note(self.rules.selection(final=True).notes)
        request = self._wanted(error)
        if request is None:
            return
        if request.action is WorkloadAction.ShutdownWorkload:
            if flag_path() is not None:
                self.log.warning("Shutdown workload requested, so creating finished flag file.")
            create_flag(flag_path(), self.log)
        self.client.send_workload_control_request(request)

    def _wanted(self, exception: BaseException) -> WorkloadControlRequest | None:
        """What the user's policy wants of the launcher. One that fails is logged, and counts as no request."""
        if self._arguments.exc_handling_policy is None:
            return None
        try:
            request = self._arguments.exc_handling_policy(exception)
        except Exception as error:
            self.log.error(
                "exc_handling_policy failed on %r with %r; the launcher is asked for nothing",
                exception,
                error,
            )
            return None
        if request is None or (
            isinstance(request, WorkloadControlRequest) and isinstance(request.action, WorkloadAction)
        ):
            return request
        self.log.error(
            "exc_handling_policy returned %r on %r, which is neither None nor a WorkloadControlRequest; the launcher "
            "is asked for nothing",
            request,
            exception,
        )
        return None

    def _learn(self, *, final: bool, stopped: bool = False) -> None:
        own = self.rules.selection(final=final)
        if not self._arguments.calculate_timeouts:
            return
        if not self.client.is_initialized:  # the other ranks ask this one all the same
            own = Selection()
        agreed = kept_timeouts.sections_wanted_by_all(
            self.side, own, self.log, patience=kept_timeouts.patience(self.client, stopped=stopped)
        )
        self._note(own.notes)
        if agreed and kept_timeouts.learn_sections(self.client, self.side, agreed, self.log):
            self._keep_learned()

    def _note(self, notes: tuple[str, ...]) -> None:
        """Say, once each, why something is not learned."""
        for note in notes:
            self._once(logging.INFO, note)

    def _limits(self) -> Any:
        limits = self.client.section_timeouts
        has_any = limits is not None and any(each is not None for each in limits.section.values())
        return limits if has_any else None
