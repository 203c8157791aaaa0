"""The checkpoint that is saved when a job ends early: where `trainer.fit(ckpt_path="last")` finds it, as the newest.

What always holds: it is saved under another name, waited for if it is saved asynchronously, flushed to the disk, and
then takes its name, so that a job that is killed meanwhile leaves what was there before. That holds for files and, but
for being flushed, for the folders of sharded strategies. A full checkpoint, also where the trainer's other checkpoints
are weights only. A `last.ckpt` that another job left in the same folder is kept; ours is then `last-v1.ckpt`, as
Lightning's would be.

Does not cover: gradients that are being accumulated, which no checkpoint has; object stores, which get the final name
at once, as they write whole objects; checkpoint I/O that takes its own view of names (NeMo's drops the `.ckpt`). A name
for last checkpoints with fields in it (`{step}`) is used, and then `ckpt_path="last"` finds none, as without us.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.checkpoints.placing import aside, exchange, put_in_place, remove

from .framework import frameworks
from .saved_checkpoints import FINALIZE, is_lightnings_asynchronous, layers

log = logging.getLogger("holdfast.ptl_resiliency")


def save_last(trainer: Any) -> str | None:
    """Save a checkpoint of what was trained; called by all ranks, after a batch or between two.

    Returns:
        Its path, when it is complete and all ranks know; None if there is no `ModelCheckpoint` that says where
        checkpoints are kept, or with `fast_dev_run`. Then nothing was saved.

    Raises:
        OSError: on all ranks, if it was written and could not be completed; what was there before is still there. What
            the trainer itself raises while it saves is raised where it happens, usually on rank 0 only.
    """
    keeper = _keeper(trainer)
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
    if hasattr(
        keeper, "_last_global_step_saved"
    ):  # so that `save_on_exception` does not save this step again
        keeper._last_global_step_saved = trainer.global_step
    return final


def finish(trainer: Any) -> None:
    """Wait for the saves that run beside the training. Called by all ranks. Raises what they raised, where they ran."""
    if callable(finalize := getattr(trainer.strategy, FINALIZE, None)):
        finalize(blocking=True)
    for io in layers(trainer):
        if callable(finalize := getattr(io, FINALIZE, None)):
            finalize(blocking=True)
        elif is_lightnings_asynchronous(io):
            try:
                io.teardown()  # waits
            finally:
                if getattr(io, "_executor", None) is not None:
                    # Lightning 2.4 keeps the executor that it has shut down; a later one makes it anew.
                    io._executor = ThreadPoolExecutor(max_workers=1)


def _finish_others(trainer: Any) -> None:
    """The trainer's own saves first: they may be of the same file. That one failed must not hinder this one."""
    try:
        finish(trainer)
    except Exception as error:
        log.warning("an asynchronous save of an earlier checkpoint has failed: %s", error)
        for io in layers(trainer):
            if getattr(io, "_error", None) is not None:  # Lightning's would raise it again in each save
                io._error = None


def _keeper(trainer: Any) -> Any:
    """The callback that says where checkpoints are: rather one that keeps a last one."""
    kinds = tuple(module.callbacks.ModelCheckpoint for module in frameworks())
    keepers = [each for each in trainer.checkpoint_callbacks if isinstance(each, kinds)]
    return next((each for each in keepers if each.save_last), keepers[0] if keepers else None)


def _place(keeper: Any, trainer: Any) -> str:
    """Its path, as this rank sees it; rank 0's counts."""
    import torch

    metrics = dict(trainer.callback_metrics)
    metrics.update(epoch=torch.tensor(trainer.current_epoch), step=torch.tensor(trainer.global_step))
    name = keeper.CHECKPOINT_NAME_LAST
    path = str(keeper.format_checkpoint_name(metrics, name))
    version = keeper.STARTING_VERSION
    while (
        getattr(keeper, "_enable_version_counter", True)
        and path != keeper.last_model_path
        and os.path.lexists(path)
    ):
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
            _take_place(unfinished, final)
        except OSError as error:
            problem = str(error)
    _agree(trainer, problem)


def _agree(trainer: Any, problem: str) -> None:
    """Raise OSError on all ranks if rank 0 had a problem. Those that wait after it then know that it is done."""
    told = trainer.strategy.broadcast(problem) or problem
    if told:
        raise OSError(f"the last checkpoint could not be saved: {told}")


def _take_place(unfinished: str, final: str) -> None:
    """Give the complete checkpoint its name. Raises OSError."""
    if not os.path.lexists(unfinished):
        raise FileNotFoundError(f"the checkpoint I/O has written nothing at {unfinished}")
    if os.path.isfile(unfinished) and not (os.path.isdir(final) and not os.path.islink(final)):
        put_in_place(unfinished, final)
    elif not os.path.lexists(final):
        os.rename(unfinished, final)
    else:
        exchange(unfinished, final)
