"""When a trainer's checkpoints are complete, and whether they are written while the training goes on.

What always holds: `then` is called after the file has its name: on every rank once all have it, or, when an
asynchronous I/O writes it, on the rank that does. Does not cover: asynchronous strategies that write without a
checkpoint I/O of their own or Lightning's; their checkpoints count when the call to save returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.patches import Patches

from .framework import frameworks

FINALIZE = "maybe_finalize_save_checkpoint"
"""By this method NeMo's and Megatron's asynchronous I/O is known."""


def layers(trainer: Any) -> Iterator[Any]:
    """The checkpoint I/O of a trainer: the outermost first, the one that writes last."""
    io = trainer.strategy.checkpoint_io
    while io is not None:
        yield io
        io = getattr(io, "checkpoint_io", None)


def is_lightnings_asynchronous(io: Any) -> bool:
    """Whether this layer is the one by which Lightning itself saves beside the training."""
    return isinstance(io, tuple(module.plugins.io.AsyncCheckpointIO for module in frameworks()))


def are_asynchronous(trainer: Any) -> bool:
    """Whether saving returns before the checkpoint is complete."""
    return any(hasattr(io, FINALIZE) or is_lightnings_asynchronous(io) for io in layers(trainer))


def when_complete(trainer: Any, patches: Patches, then: Callable[[], None]) -> None:
    """From now until `patches` are undone: call `then` after each checkpoint of this trainer is complete."""

    def save(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        done = original(*args, **kwargs)
        then()
        return done

    if are_asynchronous(trainer):
        *_, writer = layers(trainer)
        patches.wrap(writer, "save_checkpoint", save)
    else:
        patches.wrap(trainer, "save_checkpoint", save)
