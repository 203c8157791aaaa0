"""From which checkpoint a training resumes: the newest complete `checkpoint-N` of its folder.

What always holds: one that was being written when its job was ended is not chosen, and is logged; nothing is removed.
`whole_checkpoints` keeps such a folder from displacing a complete one when transformers keeps only the newest few.
Does not cover: other ranks; rank 0 chooses, and sends the choice to them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast.callbacks import callback_log
from holdfast.checkpoints.complete import first_complete

from .whole_checkpoints import PREFIX

_NAME = re.compile(rf"{PREFIX}-(\d+)")


def choose(folder: str | os.PathLike[str]) -> str:
    """Its path; nothing if there is none. Raises OSError if the folder is there and cannot be read, or one of its
    checkpoints cannot and no other is complete: nobody should train from the beginning because a disk is gone."""
    log = callback_log.named("holdfast.integrations.transformers")
    found = first_complete(_newest_first(Path(folder).absolute()))
    for skipped in found.skipped:
        log.warning("checkpoint skipped: %s", skipped)
    if found.newest is not None:
        log.info("the training resumes from %s", found.newest)
        return str(found.newest)
    log.info("there is no complete checkpoint in %s: the training begins", folder)
    return ""


def _newest_first(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    steps = {name: int(found[1]) for name in names if (found := _NAME.fullmatch(name))}
    return [
        folder / name for name in sorted(steps, key=lambda name: -steps[name]) if (folder / name).is_dir()
    ]
