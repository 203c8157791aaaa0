"""The last complete checkpoint on several ranks: rank 0 looks, and tells the others.

What always holds: all ranks get the same path, or all raise. Ranks that looked for themselves could see a shared
filesystem at different moments. Does not cover: a path that only rank 0 can read.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.side_group import SideGroup

from .search import last_complete

_FAILED = "!"


def last_complete_on_all_ranks(folder: str | os.PathLike[str]) -> Path | None:
    """`last_complete` of rank 0, on every rank. Collective; a single process needs no process group.

    Raises OSError on all ranks if rank 0 cannot read the folder, and `holdfast.side_group.CollectiveFailed` if it does
    not answer in the time that the training gives a rank.
    """
    side = SideGroup()
    try:
        text = _look(folder) if side.rank == 0 else ""
        told = side.broadcast_text(text, patience=side.setup_timeout)
    finally:
        side.close()
    if told.startswith(_FAILED):
        raise OSError(told.removeprefix(_FAILED))
    return Path(told) if told else None


def _look(folder: str | os.PathLike[str]) -> str:
    try:
        found = last_complete(folder)
        text = "" if found is None else str(found.absolute())
        text.encode()
    except Exception as error:  # whatever it is, the others wait to be told
        why = getattr(error, "strerror", None) or error
        return f"{_FAILED}checkpoints cannot be looked for in {os.fspath(folder)!a}: {why}"
    return text
