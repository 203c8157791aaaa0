"""What an open section is for, by its name. Pure.

Does not cover: names in which nobody would recognise data or a checkpoint; they tell where a rank is, not what for.
"""

from __future__ import annotations

import re

from ..evidence import BoardFacts

DATA, CHECKPOINT = "data", "checkpoint"

_DATA = re.compile(
    r"data(?!base)|loader|fetch|next_batch|get_batch|load_batch|tokeni[sz]|input_pipeline", re.IGNORECASE
)
_CHECKPOINT = re.compile(
    r"checkpoint|ckpt|\bsav(e|ing)|(^|_)sav(e|ing)|load_state|restore|resume", re.IGNORECASE
)


_CALL = re.compile(r"^(load|save|restore|resume)$|checkpoint|ckpt|load_state|save_state", re.IGNORECASE)


def is_checkpoint_call(function: str) -> bool:
    """Whether a function that reads or writes a file does it for a checkpoint, by its name."""
    return _CALL.search(function) is not None


def purpose(board: BoardFacts | None) -> str:
    """What the innermost open section is for: `DATA`, `CHECKPOINT`, or '' where that is not known."""
    if board is None or not board.sections:
        return ""
    name = board.sections[-1].name
    return CHECKPOINT if _CHECKPOINT.search(name) else DATA if _DATA.search(name) else ""
