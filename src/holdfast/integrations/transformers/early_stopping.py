"""Whether an `EarlyStoppingCallback` of transformers has ended a training: such a training is finished.

What always holds: only one that has lost its patience counts. Does not cover: callbacks that are no subclass of
transformers'.
"""

from __future__ import annotations

from typing import Any


def has_stopped_early(trainer: Any) -> bool:
    """Asked when `train` has come to its end."""
    from transformers import EarlyStoppingCallback

    return any(
        isinstance(each, EarlyStoppingCallback)
        and each.early_stopping_patience_counter >= each.early_stopping_patience
        for each in trainer.callback_handler.callbacks
    )
