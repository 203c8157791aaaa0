"""`holdfast.Loop`: supervision, preemption, checkpoints and stragglers for a plain training loop, in a few lines.

    with holdfast.Loop() as loop:
        step = load(loop.last_checkpoint("checkpoints"))
        for batch in loop(loader):                  # ends after the step at which all ranks stop
            train(batch)
            step += 1
            if loop.step(step) or step % 100 == 0:  # a heartbeat; True on all ranks after the same step
                with loop.section("checkpointing"):
                    save(step)
        loop.finished()

What always holds: `step` takes a microsecond or two until a stop is requested, and never raises because
supervision failed; without `ft_launcher` everything works, unsupervised. Does not cover: preemption of several
ranks without `ft_launcher` (they would have to ask each other in every step): the signal ends them as before. The
place in the data: after a restart `loop(loader)` begins with what the loader gives first. Saving: the checkpoint at
the end is the program's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.callbacks.completion import create_flag, flag_path, record_chosen
from holdfast.callbacks.signals import STOPS, Notices
from holdfast.fault_tolerance import RankMonitorClient, RankMonitorClientError
from holdfast.fault_tolerance.stop import StopPoint, position
from holdfast.prefixed_log import Once

if TYPE_CHECKING:
    from holdfast.straggler import Detector

__all__ = ["Loop"]

Batch = TypeVar("Batch")
DATA_LOADING, STEP = "data_loading", "step"
_NO_MORE: Any = object()

log = logging.getLogger("holdfast.integrations.loop")


class Loop:
    """One training loop of this process, as a context manager; make a new one for another loop.

    Args:
        signals: these ask for a stop, in addition to what the launcher receives, and to SIGTERM and SIGHUP. Their
            handlers stay after a stop was asked for: schedulers signal more than once.
        sections: `loop(loader)` opens the section "data_loading" while it waits for a batch, and "step" from there to
            `step`. Give them timeouts with `--ft-rank-section-timeouts`.
        straggler: initialise `holdfast.straggler.Detector` (a dict: with these arguments, such as
            `report_time_interval` in seconds), measure "data_loading", and of "step" the GPU kernels; it logs verdicts
            on slow ranks and nodes. On CPUs put a `Detector.detection_section` around the forward pass, too.

    Entering raises RankMonitorClientError if another client of this process is in use (then share that one and use
    `StopPoint`, docs/signals-and-preemption.md), and RuntimeError or ValueError if the detector cannot be initialised.
    """

    def __init__(
        self,
        signals: Sequence[int] = STOPS,
        *,
        sections: bool = False,
        straggler: bool | Mapping[str, Any] = False,
    ) -> None:
        self.client = RankMonitorClient(required=False)
        """For sections, marks and learned limits of your own."""
        self.stopped = False
        """Whether `step` has said that all ranks stop."""
        self._sections = sections
        # An empty dict asks for it as well: with the detector's defaults.
        self._straggler = None if straggler is False else {} if straggler is True else dict(straggler)
        self._detector: type[Detector] | None = None
        self._in_step: ExitStack | None = None
        self._rank = int(os.environ.get("RANK") or 0)
        self._alone = int(os.environ.get("WORLD_SIZE") or 1) == 1
        self._stop: StopPoint | None = None
        self._notices = Notices({*signals, *STOPS})
        self._steps = 0
        self._entered = False
        self._once = Once(log)

    def __enter__(self) -> Loop:
        if self._straggler is not None:
            from holdfast.straggler import Detector  # loads torch

            Detector.initialize(**self._straggler)
            self._detector = Detector
        try:
            self.client.init_workload_monitoring()
        except BaseException:
            self._shut_detector_down()
            raise
        self._entered = True
        self._stop = StopPoint.find()
        if self._stop is None and not self._alone:
            if self._rank == 0:
                log.info(
                    "several ranks without ft_launcher: a signal ends them, and no checkpoint is saved for it"
                )
            return self
        if self._stop is not None:
            self._notices.tell = self._stop.notice
        self._notices.install()
        if self._stop is not None:
            self._stop.waiting = self.client.send_heartbeat
            self._stop.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_step()
        self._entered = False
        self._shut_detector_down()
        asked = self.stopped or self._notices.number or (self._stop is not None and self._stop.wanted)
        self._notices.tell = None
        if self._stop is not None:
            self._stop.end()
        if asked:
            self._notices.leave_in_force()
        else:
            self._notices.restore()
        if self.client.is_initialized:
            self.client.end_all_sections()
        self.client.shutdown_workload_monitoring()

    def __call__(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, until all ranks stop: the one after which `step` returned True is the last."""
        source = iter(batches)
        while not self.stopped:
            with self._measured(DATA_LOADING):
                batch = next(source, _NO_MORE)
            if batch is _NO_MORE:
                self._end_step()  # the last batches may make no whole one
                return
            if self._in_step is None:  # else several batches make a step
                self._in_step = self._measured(STEP)
            yield batch

    def step(self, step: int | None = None) -> bool:
        """This rank has finished a step: a heartbeat, with the step's number if it is given.

        True: all ranks stop here; save a checkpoint and leave the loop. All ranks call it equally often. Raises
        RankMonitorClientError outside of the `with` block, or if `step` is no integer.
        """
        if not self._entered:
            raise RankMonitorClientError(
                "the loop is not open: use `with holdfast.Loop() as loop:` around it"
            )
        self._end_step()
        if not self._has_lost_supervision():
            self.client.heartbeat(step)
        if self._detector is not None and self._detector.initialized:  # the program may have shut it down
            self._detector.generate_report_if_interval_elapsed()  # logs verdicts
        self._steps += 1
        self.stopped = self._passes()
        return self.stopped

    def section(self, name: str) -> AbstractContextManager[None]:
        """`with loop.section("checkpointing"): ...`: what the rank does, with a limit of its own."""
        return nullcontext() if self._has_lost_supervision() else self.client.section(name)

    def last_checkpoint(self, folder: str | os.PathLike[str]) -> Path | None:
        """The newest complete checkpoint in the folder, the same on all ranks; None if there is none. Collective.

        Raises OSError on all ranks if rank 0 cannot read the folder. `holdfast.checkpoints` says what is complete.
        """
        from holdfast.checkpoints import last_complete_on_all_ranks  # loads torch

        found = last_complete_on_all_ranks(folder)
        if found is not None and self._rank == 0:
            record_chosen(str(found))
        return found

    def finished(self) -> None:
        """The training is complete: rank 0 makes the file that FAULT_TOL_FINISHED_FLAG_FILE names, if it does.

        Does nothing after a stop: the next job resumes, or finds nothing more to do.
        """
        if self._rank == 0 and not self.stopped:
            create_flag(flag_path(), log)

    def _measured(self, name: str) -> ExitStack:
        """What is asked for around a part of a step, entered."""
        both = ExitStack()
        if self._sections:
            both.enter_context(self.section(name))
        detector = self._detector
        if detector is not None and detector.initialized:  # the program may have shut it down
            # In a step ranks wait for one another: in a section with scores the fast ones would look slow.
            section = detector.collective_section if name == STEP else detector.detection_section
            both.enter_context(section(name, profile_cuda=name == STEP))
        return both

    def _has_lost_supervision(self) -> bool:
        """Whether the program has ended the client's supervision within the `with` block, which is logged once."""
        is_lost = self._entered and not self.client.is_initialized
        if is_lost:
            text = "supervision has ended before the training: the client was shut down"
            self._once(logging.WARNING, text)
        return is_lost

    def _end_step(self) -> None:
        in_step, self._in_step = self._in_step, None
        if in_step is not None:
            in_step.close()

    def _shut_detector_down(self) -> None:
        detector, self._detector = self._detector, None
        if detector is not None:
            detector.shutdown()

    def _passes(self) -> bool:
        if self._stop is None:
            return self._notices.number != 0
        if self._stop.passes(position(self._steps)):
            return True
        # Where there is no other rank to agree with.
        return self._alone and self._notices.number != 0 and self._stop.given_up
