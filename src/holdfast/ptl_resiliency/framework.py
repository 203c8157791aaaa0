"""Which Lightning this process uses, and all that is needed of it that has no public hook.

`lightning` and `pytorch_lightning` are one framework under two names, and a callback of one is none of the other's.
What is loaded already decides; if both are, our callbacks are callbacks of both. docs/framework-internals.md says of
each internal why no hook serves.

What always holds: a version that was not tested is refused in one line when a callback is set up; what is replaced here
is put back when the fit ends, but for the order of `trainer.callbacks`.
Does not cover: a program that loads the other name after our callbacks: `lightning` is taken where neither is loaded
yet and it is installed.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.callbacks import arguments
from holdfast.callbacks.signals import InitFn
from holdfast.patches import Patches

TESTED = ((2, 4), (2, 6))
"""The first and the last version of Lightning that `make matrix` tests; docs/versions.md."""
_NAMES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def frameworks() -> list[Any]:
    """The modules in use, loaded. Raises ImportError, with what to install, if there is none."""
    loaded = [name for name in _NAMES.values() if name in sys.modules]
    found = loaded or [name for package, name in _NAMES.items() if find_spec(package)][:1]
    if not found:
        raise ImportError(
            "holdfast.ptl_resiliency needs Lightning, and neither `lightning` nor `pytorch_lightning` is installed "
            "here: pip install lightning"
        )
    return [import_module(name) for name in found]


def refuse_untested() -> None:
    """Raises RuntimeError where a Lightning in use is older or newer than those that were tested."""
    for module in frameworks():
        arguments.refuse_untested("Lightning", module.__version__, TESTED)


if TYPE_CHECKING:
    # Lightning is not installed where types are checked; the hooks that are used are checked by running them.
    class Callback:
        """A callback of Lightning."""
else:
    _bases = tuple(module.Callback for module in frameworks())
    Callback = _bases[0] if len(_bases) == 1 else type("Callback", _bases, {"__doc__": "A callback of both."})


class PlacedCallback(Callback):
    """A callback of ours, which has a place among those of the trainer."""

    place: ClassVar[int] = 1
    """Below 0: before the user's callbacks. Above: after them and before those that save checkpoints, so that a
    checkpoint has what all others did in that batch. Least first."""

    def take_place(self, trainer: Any) -> None:
        """To be called in `setup`. A new list, as Lightning may be walking the old one."""
        trainer.callbacks = sorted(trainer.callbacks, key=_place)

    def __getstate__(self) -> dict[str, Any]:
        """For copies: nothing has begun in them."""
        working = ("_fit", "_run", "_patches", "_loggers", "_elsewhere")
        return {name: value for name, value in vars(self).items() if name not in working}


def _place(callback: Any) -> tuple[int, int]:
    if isinstance(callback, PlacedCallback):
        return (-1 if callback.place < 0 else 1, callback.place)
    return (2, 0) if is_a(callback, "Checkpoint") else (0, 0)


def is_a(callback: object, name: str) -> bool:
    """Whether this is a callback of Lightning's class of this name."""
    return isinstance(callback, tuple(getattr(module.callbacks, name) for module in frameworks()))


def keep_signals_from_lightning(
    trainer: Any, signals: set[int], patches: Patches, then: Callable[[], object] = lambda: None
) -> None:
    """Lightning registers its handlers just before it runs, and puts others' back when it ends: not for these signals.

    Its handler runs a collective wherever in the step the rank is, and two ranks may wait for each other. `then` is
    called when it has registered.
    """
    connector = trainer._signal_connector

    def register(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        meanwhile = Patches()
        meanwhile.wrap(connector, "_register_signal", others)
        try:
            return original(*args, **kwargs)
        finally:
            meanwhile.undo()
            for number in signals:
                connector._original_handlers.pop(number, None)
            then()

    def others(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return None if args and args[0] in signals else original(*args, **kwargs)

    patches.wrap(connector, "register_signal_handlers", register)


def at_the_end_of_each_loader(trainer: Any, patches: Patches, call: Callable[[], None]) -> None:
    """In a validation, after the batches of a loader and before its results are reduced over the ranks."""

    def store(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call()
        return original(*args, **kwargs)

    patches.wrap(trainer.fit_loop.epoch_loop.val_loop, "_store_dataloader_outputs", store)


def validation_follows(trainer: Any) -> bool:
    """Whether a validation is due after the training batch that runs."""
    loop = trainer.fit_loop.epoch_loop
    return bool(loop._should_check_val_fx(trainer.fit_loop._data_fetcher))


def steps_are_reached(trainer: Any) -> bool:
    """Whether the trainer's `max_steps` are done: a fit that resumes from here ends at once, without a validation."""
    return 0 <= int(trainer.max_steps) <= int(trainer.global_step)


def is_last_of_epoch(trainer: Any) -> bool:
    """Whether the training batch that runs is the last one of its epoch, or of the training."""
    return bool(trainer.fit_loop.epoch_loop._num_ready_batches_reached()) or steps_are_reached(trainer)


def leave_validation_to_come(checkpoint: dict[str, Any], *, begun: bool) -> None:
    """Change what a checkpoint says of the loops: a fit that resumes from it begins with the validation.

    Saved in one of its hooks, a checkpoint says that the validation is over, and saved after the last batch before it,
    that there is none: early stopping, best checkpoints and schedulers would never see its result. `begun`: it is saved
    in the validation. A checkpoint with other counters is left as it is.
    """
    try:
        loops = checkpoint["loops"]["fit_loop"]
        training, validation = (loops[f"epoch_loop.{name}batch_progress"] for name in ("", "val_loop."))
        total, current = validation["total"], validation["current"]
        earlier = total["ready"] - (current["ready"] if begun else 0)
        # The hook that it is saved in is the last that the training batch has before the validation.
        if not begun:
            for counters in (training["total"], training["current"]):
                counters["completed"] += 1
    except (KeyError, TypeError):
        return
    for counters, done in ((total, earlier), (current, 0)):
        counters.update(ready=done + 1, started=done + 1, processed=done, completed=done)
    validation["is_last_batch"] = False


def leave_epoch_to_come(checkpoint: dict[str, Any]) -> None:
    """Change what a checkpoint says of the loops: saved where an epoch begins, it has the batches of the one before.

    A fit that resumes would take them for those of the new epoch, and end it after one batch. A checkpoint with other
    counters is left as it is.
    """
    try:
        batches = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        batches["current"].update(dict.fromkeys(("ready", "started", "processed", "completed"), 0))
        batches["is_last_batch"] = False
    except (KeyError, TypeError):
        return


def ended_mid_epoch(trainer: Any) -> bool:
    """Whether the last training batch was not the last one of its epoch."""
    return not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch


def writes_one_file(io: Any) -> bool:
    """Whether this checkpoint I/O is, or is derived from, the one by which Lightning itself writes."""
    return isinstance(io, tuple(module.plugins.io.TorchCheckpointIO for module in frameworks()))


def is_lightnings_asynchronous(io: Any) -> bool:
    """Whether this checkpoint I/O is the one by which Lightning itself saves beside the training."""
    return isinstance(io, tuple(module.plugins.io.AsyncCheckpointIO for module in frameworks()))


def wait_for_asynchronous(io: Any) -> None:
    """Until what it saves is saved; raises what that raised. It can be used afterwards."""
    try:
        io.teardown()
    finally:
        if getattr(io, "_executor", None) is not None:
            # Lightning 2.4 keeps the executor that it has shut down; a later one makes it anew.
            io._executor = ThreadPoolExecutor(max_workers=1)


def forget_failed_save(io: Any) -> None:
    """Lightning's asynchronous I/O would raise the error of an earlier save again in each further one."""
    if getattr(io, "_error", None) is not None:
        io._error = None


def saved_this_step(keeper: Any, step: int) -> None:
    """So that a `ModelCheckpoint` with `save_on_exception` does not save this step again."""
    keeper._last_global_step_saved = step


def seeding(rank: int) -> InitFn | None:
    """What Lightning would give a loader without a `worker_init_fn` (`seed_everything(workers=True)`)."""
    if not int(os.environ.get("PL_SEED_WORKERS") or 0):
        return None
    fabric = "lightning.fabric" if "lightning.fabric" in sys.modules else "lightning_fabric"
    return functools.partial(import_module(f"{fabric}.utilities.seed").pl_worker_init_function, rank=rank)


class TrainerLoggers:
    """Metrics of ours for all loggers of a trainer: `log_dict` of the module passes on one batch in fifty.

    Called on rank 0 only.
    """

    def __init__(self, log: logging.Logger) -> None:
        """`log` gets a warning of each logger that raises."""
        self._log = log
        self._told: set[int] = set()

    def of_this_step(self, trainer: Any) -> Callable[[Mapping[str, float]], None]:
        """Gives metrics to each logger, now or later, at the step that Lightning itself has for the batch of now."""
        # It differs from `global_step` with several optimizers.
        step, epoch = int(trainer.fit_loop.epoch_loop._batches_that_stepped), trainer.current_epoch

        def give(metrics: Mapping[str, float]) -> None:
            for logger in trainer.loggers:
                try:
                    logger.log_metrics(metrics={**metrics, "epoch": epoch}, step=step)
                    logger.save()
                except Exception as error:
                    self._tell(logger, error)

        return give

    def _tell(self, logger: object, error: Exception) -> None:
        if id(logger) not in self._told:
            self._told.add(id(logger))
            self._log.warning(
                "%s did not take the straggler metrics (%s: %s): they are missing there. Training continues",
                type(logger).__name__,
                type(error).__name__,
                error,
            )
