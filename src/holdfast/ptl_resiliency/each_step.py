"""What our callbacks do in each training step of a trainer, in one wrapper of the strategy's `training_step`.

No hook of Lightning's runs for us in an ordinary step. The wrapper sends the heartbeat, opens and closes the section
"step", measures the straggler's section, says where the rank is, and arms the hook after the batch (`after_batch`) for
a batch after which something is due. It is `step_call.StepCall`.

What always holds: there is at most one wrapper in a trainer, for as long as one of our callbacks needs it; a batch is
counted once, however often the optimizer calls the step. Does not cover: batches in which Lightning does not call the
strategy (its loader gave None): they have no heartbeat, and the hook is armed after the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from holdfast.fault_tolerance.timeouts.learning_conditions import STEP
from holdfast.patches import Patch, Patches

from .after_batch import Crew
from .step_call import NEVER, StepCall

if TYPE_CHECKING:
    from holdfast.fault_tolerance.board import BoardWriter

    from .step_call import Point

_STEP_METHOD = "training_step"


class EachStep:
    """The wrapper of one trainer, and who needs it. Get it with `of`; `leave` when it is no longer needed."""

    def __init__(self, trainer: Any) -> None:
        self._patches = Patches()
        self._users: list[object] = []
        self._lost: list[Callable[[], object]] = []
        self._base: int | None = None
        self.call = StepCall()
        self.call.arm = Crew.of(trainer).arm
        self.call.counter = _counter(trainer)
        self.call.lost = self._tell_lost
        self._patches.replace(trainer.strategy, _STEP_METHOD, self._made)
        if isinstance(self.call.counter, _Calls):
            self._patches.wrap(trainer.strategy, _STEP_METHOD, self.call.counter.count)
        _ALL.add(self)

    @classmethod
    def of(cls, trainer: Any, user: object) -> EachStep:
        """That of this trainer."""
        found = _STEPS.get(trainer)
        if found is None:
            found = _STEPS[trainer] = cls(trainer)
        found._users.append(user)
        return found

    def leave(self, trainer: Any, user: object) -> None:
        """No more of this user; the last one takes the wrapper away. May be called twice."""
        self._users = [each for each in self._users if each is not user]
        if not self._users:
            if _STEPS.get(trainer) is self:
                del _STEPS[trainer]
            self._patches.undo()
            self.forget()

    def begin(self) -> None:
        """States are restored; the first batch comes."""
        if self._base is None:
            self._base = self.call.base = self.call.ready = self.call.counter.ready

    @property
    def batches(self) -> int:
        """Training batches of this fit so far, with the one that runs."""
        return 0 if self._base is None else int(self.call.counter.ready) - self._base

    def beats(self, writer: BoardWriter, steps: Any, lost: Callable[[], object]) -> None:
        """From now on a heartbeat for each batch, with `steps.completed`. `lost`: supervision has ended."""
        self._lost.append(lost)
        self.call.writer, self.call.steps = writer, steps

    def section(
        self, writer: BoardWriter, told: Callable[[bool], object], lost: Callable[[], object]
    ) -> None:
        """From now on each call is in the section "step". `told`: the program has opened or closed it by itself."""
        self._lost.append(lost)
        self.call.writer, self.call.told, self.call.section = writer, told, STEP

    def measures(self, remeasure: Callable[[], None], detector: Any) -> None:
        """From now on `remeasure` is called when `detector` has another session than the one before."""
        self.call.remeasure, self.call.detector = remeasure, detector

    def looks(self, point: Point | None) -> None:
        """From now on say at this point where the rank is, and arm the hook while something is asked there. To be
        repeated after each question."""
        self.call.look(point)

    def due_in(self, batches: int) -> None:
        """Arm the hook for the batch so many after this one, and from there on for each."""
        self.call.due = int(self.call.counter.ready) + batches

    def forget(self) -> None:
        """The wrapper only passes calls on."""
        call = self.call
        call.active = False
        call.writer = call.steps = call.section = call.detector = call.measured = call.inner = None
        call.due = NEVER
        call.look(None)

    def _made(self, original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        self.call.original = original
        return self.call

    def _tell_lost(self) -> None:
        """Supervision has ended before the training: said by who needs it, once."""
        self.call.writer = self.call.steps = self.call.section = None
        lost, self._lost = self._lost, []
        for tell in lost:
            tell()


def _counter(trainer: Any) -> Any:
    """An object whose `ready` counts the training batches, with the one that runs."""
    try:
        counter = trainer.fit_loop.epoch_loop.batch_progress.total
        if isinstance(counter.ready, int):
            return counter
    except AttributeError:
        pass
    return _Calls()


class _Calls:
    """Where Lightning keeps no such count: each call is a batch."""

    def __init__(self) -> None:
        self.ready = 0

    def count(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.ready += 1
        return original(*args, **kwargs)


_STEPS: WeakKeyDictionary[Any, EachStep] = WeakKeyDictionary()
_ALL: WeakSet[EachStep] = WeakSet()


def _forget_in_child() -> None:
    """A forked child writes on no page of its parent's."""
    for each in list(_ALL):
        each.forget()


os.register_at_fork(after_in_child=_forget_in_child)
