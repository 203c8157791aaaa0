"""The checkpoints of a trainer: complete or absent, when they are complete, how long they take, and the last one.

Lightning moves a finished file into its place, which is a copy where the temporary folder is on another filesystem. So
while one of our callbacks is active, what Lightning's own checkpoint I/O writes goes next to its place, is flushed, and
takes its place in one step.

What always holds: nothing picks an unfinished checkpoint up on resume. A job that is killed while it saves its last
checkpoint leaves what was there before. That holds for files and, but for being flushed, for the folders of sharded
strategies. A file replaces a folder only as the last checkpoint.

Does not cover: object stores, which write whole objects under their final names; asynchronous strategies that write
without a checkpoint I/O of their own or Lightning's, whose checkpoints count when the call to save returns; saves by
hand, past the strategy; I/O that is not derived from Lightning's own, but for the last checkpoint, and there not I/O
that takes its own view of names (NeMo's drops the `.ckpt`); gradients that are being accumulated, which no checkpoint
has. A name for last checkpoints with fields in it (`{step}`) is used, and then `ckpt_path="last"` finds none, as
without us.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from holdfast.checkpoints.atomic import aside, is_aside, put_in_place, remove
from holdfast.patches import Patches

from .framework import (
    forget_failed_save,
    is_a,
    is_lightnings_asynchronous,
    saved_this_step,
    wait_for_asynchronous,
    writes_one_file,
)

FINALIZE = "maybe_finalize_save_checkpoint"
"""By this method NeMo's and Megatron's asynchronous I/O is known."""

log = logging.getLogger("holdfast.ptl_resiliency")


def layers(trainer: Any) -> Iterator[Any]:
    """The checkpoint I/O of a trainer: the outermost first, the one that writes last."""
    io = trainer.strategy.checkpoint_io
    while io is not None:
        yield io
        io = getattr(io, "checkpoint_io", None)


def are_asynchronous(trainer: Any) -> bool:
    """Whether saving returns before the checkpoint is complete."""
    return any(hasattr(io, FINALIZE) or is_lightnings_asynchronous(io) for io in layers(trainer))


def keep_whole(trainer: Any, patches: Patches) -> None:
    """From now until `patches` are undone, files that this trainer saves are complete or absent.

    Each user has a patch of its own, so it does not matter which of them ends first; the outermost does the work.
    Only of Lightning's own I/O it is known that rank 0 alone writes one file, complete when the call returns.
    """
    *_, writer = ios = list(layers(trainer))
    if not writes_one_file(writer) or any(hasattr(io, FINALIZE) for io in ios):
        return
    patches.wrap(writer, "save_checkpoint", _save_whole)


def _save_whole(save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    path = args[1] if len(args) > 1 else kwargs.get("path")
    if not isinstance(path, (str, os.PathLike)) or "://" in os.fspath(path):
        return save(*args, **kwargs)
    final = os.path.abspath(os.fspath(path))
    if is_aside(final):  # completed elsewhere: by another user of this, or by `save_last`
        return save(*args, **kwargs)
    unfinished = aside(final)
    if len(args) > 1:
        args = (args[0], unfinished, *args[2:])
    else:
        kwargs = {**kwargs, "path": unfinished}
    try:
        done = save(*args, **kwargs)
        put_in_place(unfinished, final)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return done


def when_complete(trainer: Any, patches: Patches, then: Callable[[float], object]) -> None:
    """From now until `patches` are undone: call `then` when a checkpoint of this trainer has its name, with the seconds
    that it took: on every rank once all have it, or, when an asynchronous I/O writes it, on the rank that does."""
    started = 0.0

    def save(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal started
        started = time.monotonic()
        return original(*args, **kwargs) if is_asynchronous else written(original, args, kwargs)

    def written(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Also in the thread of an asynchronous save, after the call that began it has come back."""
        done = original(*args, **kwargs)
        then(time.monotonic() - started)
        return done

    is_asynchronous = are_asynchronous(trainer)
    if is_asynchronous:
        *_, writer = layers(trainer)
        patches.wrap(writer, "save_checkpoint", written)
    patches.wrap(trainer, "save_checkpoint", save)


def save_last(trainer: Any) -> str | None:
    """Save a checkpoint of what was trained; called by all ranks, after a batch or between two.

    A full one, also where the trainer's other checkpoints are weights only. A `last.ckpt` that another job left in the
    same folder is kept; ours is then `last-v1.ckpt`, as Lightning's would be.

    Returns:
        Its path, when it is complete and all ranks know; None if there is no `ModelCheckpoint` that says where
        checkpoints are kept, or with `fast_dev_run`. Then nothing was saved.

    Raises:
        OSError: on all ranks, if it was written and could not be completed; what was there before is still there. What
            the trainer itself raises while it saves is raised where it happens, usually on rank 0 only.
    """
    keeper = keeper_of(trainer)
    if keeper is None or trainer.fast_dev_run:
        return None
    _finish_others(trainer)
    final = str(trainer.strategy.broadcast(_place(keeper, trainer)))
    before, keeper.last_model_path = keeper.last_model_path, final  # it is part of what is saved
    try:
        _save(trainer, final)
    except BaseException:
        keeper.last_model_path = before
        raise
    saved_this_step(keeper, trainer.global_step)
    return final


def finish(trainer: Any) -> None:
    """Wait for the saves that run beside the training. Called by all ranks. Raises what they raised, where they ran."""
    if callable(finalize := getattr(trainer.strategy, FINALIZE, None)):
        finalize(blocking=True)
    for io in layers(trainer):
        if callable(finalize := getattr(io, FINALIZE, None)):
            finalize(blocking=True)
        elif is_lightnings_asynchronous(io):
            wait_for_asynchronous(io)


def _finish_others(trainer: Any) -> None:
    """The trainer's own saves first: they may be of the same file. That one failed must not hinder this one."""
    try:
        finish(trainer)
    except Exception as error:
        log.warning("an asynchronous save of an earlier checkpoint has failed: %s", error)
        for io in layers(trainer):
            forget_failed_save(io)


def keeper_of(trainer: Any) -> Any:
    """The callback that says where checkpoints are: rather one that keeps a last one."""
    keepers = [each for each in trainer.checkpoint_callbacks if is_a(each, "ModelCheckpoint")]
    return next((each for each in keepers if each.save_last), keepers[0] if keepers else None)


def _place(keeper: Any, trainer: Any) -> str:
    """Its path, as this rank sees it; rank 0's counts."""
    import torch

    metrics = dict(trainer.callback_metrics)
    metrics.update(epoch=torch.tensor(trainer.current_epoch), step=torch.tensor(trainer.global_step))
    name = keeper.CHECKPOINT_NAME_LAST
    path = str(keeper.format_checkpoint_name(metrics, name))
    version = keeper.STARTING_VERSION
    exists = keeper._fs.exists if "://" in path else os.path.lexists
    while keeper._enable_version_counter and path != keeper.last_model_path and exists(path):
        path = str(keeper.format_checkpoint_name(metrics, name, ver=version))
        version += 1
    return path


def _save(trainer: Any, final: str) -> None:
    if "://" in final:
        trainer.save_checkpoint(final, weights_only=False)
        finish(trainer)
        trainer.strategy.barrier("holdfast.save_last")
        return
    final = os.path.abspath(final)
    unfinished = aside(final)
    problem = ""
    if trainer.is_global_zero:
        try:
            os.makedirs(os.path.dirname(final), exist_ok=True)
            remove(unfinished)  # shards of an earlier try would be taken for ours
        except OSError as error:
            problem = str(error)
    _agree(trainer, problem)
    trainer.save_checkpoint(unfinished, weights_only=False)
    try:
        finish(trainer)
    except Exception as error:  # as told by the thread that wrote
        problem = str(error) or type(error).__name__
    trainer.strategy.barrier("holdfast.save_last")
    if trainer.is_global_zero and not problem:
        try:
            if not os.path.lexists(unfinished):
                raise FileNotFoundError(f"the checkpoint I/O has written nothing at {unfinished}")
            put_in_place(unfinished, final, replaces_folder=True)
        except OSError as error:
            problem = str(error)
    _agree(trainer, problem)


def _agree(trainer: Any, problem: str) -> None:
    """Raise OSError on all ranks if rank 0 had a problem. Those that wait after it then know that it is done."""
    told = trainer.strategy.broadcast(problem) or problem
    if told:
        raise OSError(f"the last checkpoint could not be saved: {told}")
