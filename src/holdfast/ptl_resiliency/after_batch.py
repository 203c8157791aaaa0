"""One call of Lightning after a training batch for all our callbacks, and none after most batches.

A hook costs 2 to 6 µs in Lightning however little it does, and every callback has a dozen that do nothing; on a step
of 2 ms four such callbacks cost 2 %. So while training runs, an instance of ours has only those hooks of a batch that
its class (or a user's subclass) really has, and what they do after a batch is called from one of them, in a fixed
order, and only after a batch for which somebody has armed it (`each_step` does, when something is due).
What always holds: outside of a fit the instances are as any other callback's; a user's subclass that has its own
`on_train_batch_end` keeps it; our callbacks run after the user's and before Lightning's checkpoint callbacks, so that a
checkpoint which one of them saves has what the others did in that batch.

Does not cover: callbacks that a program adds to the trainer while it trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from .framework import Callback, is_checkpoint

_HOT = "on_train_batch_end"
_EACH_BATCH = (
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_validation_batch_start",
    "on_validation_batch_end",
)
"""Hooks that Lightning looks for in each batch. The rarer ones stay: four times thirty more attributes are memory that
each batch would fetch anew."""


class AfterBatchCallback(Callback):
    """A callback of ours. Subclasses call `enlist` in `setup` and `dismiss` in `teardown` (both may be repeated)."""

    order: ClassVar[int] = 0
    """Who is called first after a batch; least first."""
    _crew: Crew | None = None

    def after_batch(self, trainer: Any, pl_module: Any) -> None:
        """What to do after a training batch, with the model's own hook still to come. Called at the latest after the
        batch for which `arm` was called; it may be called after any other."""

    def arm(self) -> None:
        """Be called after this batch; between two batches, after the next one. Safe in a signal handler."""
        if self._crew is not None:
            self._crew.arm()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called by Lightning where nobody is enlisted, or a subclass has its own and calls this."""
        self.after_batch(trainer, pl_module)

    def enlist(self, trainer: Any) -> None:
        """From now until `dismiss`: be called after each batch of this trainer, and have no idle hooks."""
        self.dismiss(trainer)
        self._crew = Crew.of(trainer)
        if type(self).on_train_batch_end is AfterBatchCallback.on_train_batch_end:
            self._crew.take(self)
        for name in _idle_hooks(type(self)):
            setattr(self, name, None)
        _move_to_the_end(trainer)

    def dismiss(self, trainer: Any) -> None:
        """Be an ordinary callback again."""
        for name in [name for name, value in vars(self).items() if name.startswith("on_") and value is None]:
            delattr(self, name)
        vars(self).pop(_HOT, None)
        self._crew = None
        if crew := _CREWS.get(trainer):
            crew.leave(self)

    def __getstate__(self) -> dict[str, Any]:
        """For copies: without what belongs to the trainer that it is enlisted at."""
        state = dict(vars(self))
        return {
            name: value for name, value in state.items() if not name.startswith("on_") and name != "_crew"
        }


class Crew:
    """The callbacks of one trainer. The last by order has the hook for all of them, while it is armed."""

    def __init__(self) -> None:
        self._members: list[AfterBatchCallback] = []
        self._keeper: AfterBatchCallback | None = None
        self._hook: Callable[..., None] | None = None

    @classmethod
    def of(cls, trainer: Any) -> Crew:
        """That of this trainer."""
        return _CREWS.setdefault(trainer, cls())

    def arm(self) -> None:
        """Call all of them after this batch."""
        if self._keeper is not None:
            setattr(self._keeper, _HOT, self._hook)

    def take(self, member: AfterBatchCallback) -> None:
        self._members = sorted([*self._members, member], key=lambda each: each.order)
        self._share()

    def leave(self, member: AfterBatchCallback) -> None:
        if any(member is each for each in self._members):
            self._members = [each for each in self._members if each is not member]
            self._share()

    def _share(self) -> None:
        calls = tuple(member.after_batch for member in self._members)
        # The last by order is the last in the trainer's list as well, where each has its place by then.
        self._keeper = keeper = self._members[-1] if self._members else None

        def after_batch(
            trainer: Any, pl_module: Any, outputs: Any = None, batch: Any = None, batch_idx: int = 0
        ) -> None:
            setattr(keeper, _HOT, None)  # first, so that what is armed from now on stays armed
            for call in calls:
                call(trainer, pl_module)

        self._hook = after_batch
        for member in self._members:
            setattr(member, _HOT, None)
        self.arm()  # the first batch


_CREWS: WeakKeyDictionary[Any, Crew] = WeakKeyDictionary()


def _idle_hooks(kind: type) -> list[str]:
    """The hooks of each batch that this class only inherits from Lightning, where they do nothing."""
    return [name for name in _EACH_BATCH if getattr(kind, name) is getattr(Callback, name)]


def _move_to_the_end(trainer: Any) -> None:
    """Ours after the user's, before the checkpoint callbacks; a new list, as Lightning may be walking the old one."""
    callbacks = list(trainer.callbacks)
    ours = [each for each in callbacks if isinstance(each, AfterBatchCallback)]
    checkpoints = [each for each in callbacks if is_checkpoint(each)]
    others = [each for each in callbacks if each not in ours and each not in checkpoints]
    trainer.callbacks = others + sorted(ours, key=lambda each: each.order) + checkpoints
