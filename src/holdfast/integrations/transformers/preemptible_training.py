"""One training that a `PreemptionCallback` watches over, from `train` until it ends.

What always holds: nothing is changed before all ranks have come to `listen`; `close` puts back what that has changed,
however far it came; no process exits with 0 unless the checkpoint is complete on all ranks.
Does not cover: which hook of transformers calls what, see :mod:`.preemption_callback`.
"""

from __future__ import annotations

import time
from os import environ

from holdfast.callbacks import callback_log
from holdfast.fault_tolerance.stop.rules import END
from holdfast.preemption import log_texts
from holdfast.preemption.loader_workers import StayingWorkers
from holdfast.preemption.notices import Notices
from holdfast.preemption.stopping_place import Alone, Way, find_way
from holdfast.preemption.time_left import shortage, time_left
from holdfast.side_group import CollectiveFailed

from . import evaluation_to_come, loaders
from .train_call import TrainCall

LOGGER = "nemo_logger.PreemptionCallback"


class PreemptibleTraining:
    """`signals` are the numbers of those that are notices."""

    def __init__(self, training: TrainCall, signals: set[int]) -> None:
        self.log = callback_log.named(LOGGER)
        self.notices = Notices(signals)
        self.stops = False
        """All ranks stop here, as soon as the checkpoint is saved."""
        self._training = training
        self._workers = StayingWorkers(signals)
        self._steps = self._in_evaluation = 0
        self._said_received = self._preempted = False
        self._began = 0.0
        self._way: Way = Alone(self.notices)

    def listen(self) -> bool:
        """From now on, on all ranks, a signal is a notice. Collective, and all may stop here.

        False: the ranks cannot ask each other (one ended meanwhile), and nothing here is of use.
        """
        try:
            self._way = find_way(self.notices)
            if not self.notices.install():
                self.log.warning(log_texts.DEAF)
            loaders.watch(self._training, self._workers)
            stop = self._way.listening()
        except CollectiveFailed as error:
            self.log.warning(log_texts.ASKED_NOBODY, error)
            return False
        if stop:
            self._leave_at_once()
        return True

    def train_begins(self) -> None:
        """The first step comes. Raises SystemExit(0) if there need be none."""
        self.notices.install()
        if self._way.begin():
            self._leave_at_once()

    def after_step(self) -> bool:
        """After each optimizer step: whether all stop here."""
        self._steps += 1
        self._in_evaluation = 0
        if self._way.after_batch(self._steps):
            self._stop()
        if self.notices.number:
            self._say_received()
        return self.stops

    def in_evaluation(self) -> None:
        """After each batch of an evaluation. Raises SystemExit(0) when the checkpoint is complete."""
        self._in_evaluation = min(self._in_evaluation + 1, END - 1)
        if not self.stops and self._way.in_validation(self._steps, self._in_evaluation):
            if self._steps == 0:
                self._leave_at_once()
            self._stop()
        if self.notices.number:
            self._say_received()
        if self.stops:
            self.save_and_exit()

    def save_and_exit(self) -> None:
        """In an evaluation, which is left, or when it is over. Raises SystemExit(0), or what the save raised."""
        trainer = self._training.trainer
        evaluation_to_come.leave_to_the_next_start(self._training)
        trainer._save_checkpoint(trainer.model, trial=None)
        self.exit()

    def exit(self) -> None:
        """The trainer has saved. Raises SystemExit(0), or OSError if it is not known that all ranks have."""
        checkpoints = self._training.checkpoints
        if checkpoints.newest is None or not checkpoints.newest.endswith(f"-{self._training.step}"):
            raise OSError(
                f"the checkpoint of step {self._training.step} is not known to be complete on all ranks"
            )
        seconds = time.monotonic() - self._began
        self._say(log_texts.complete(self._training.step, seconds, checkpoints.newest))
        raise SystemExit(0)

    def say_failed(self, error: BaseException) -> None:
        """Where the save for a preemption has failed, on each rank."""
        if self.stops and not isinstance(error, SystemExit):
            self.log.error("%s", log_texts.failed(self._training.step, error))

    def close(self) -> None:
        """Everything back as it was; but the process that exits now is not to be ended sooner by a second signal."""
        self._way.close()
        self._workers.undo()
        if self._preempted:
            self.notices.leave_in_force()
        else:
            self.notices.restore()

    def _stop(self) -> None:
        """On all ranks, at the same place."""
        self.stops = self._preempted = True
        self._began = time.monotonic()
        self._say_received()
        self._say(log_texts.DETECTED)
        left = time_left(self._way.deadline, environ, monotonic=time.monotonic(), wall=time.time())
        if problem := shortage(left, self._training.checkpoints.took):
            self._say(problem)

    def _leave_at_once(self) -> None:
        self._preempted = True
        self._say_received()
        self._say(log_texts.NOTHING)
        raise SystemExit(0)

    def _say_received(self) -> None:
        """Not in the handler: it may have interrupted a thread of this process that holds the log's lock."""
        if self.notices.number and not self._said_received:
            self._said_received = True
            self.log.warning(log_texts.RECEIVED, self.notices.number)

    def _say(self, text: str) -> None:
        if self._training.rank == 0:
            self.log.warning("%s", text)
