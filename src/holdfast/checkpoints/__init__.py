"""Checkpoints on the disk: the newest one that is complete, why others are not, and writing one whole.

    from holdfast import checkpoints

    newest = checkpoints.last_complete("checkpoints")            # a Path or None; says what it skips, and why

For Lightning (`.ckpt`, also sharded), Hugging Face (`checkpoint-N`), torch.distributed.checkpoint and `torch.save`.
Nothing is unpickled or loaded, big files are not read, and importing it imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .agreed import last_complete_on_all_ranks as last_complete_on_all_ranks
    from .placing import whole_file as whole_file
    from .search import Search as Search
    from .search import Skipped as Skipped
    from .search import last_complete as last_complete
    from .search import look as look
    from .whole import why_incomplete as why_incomplete

_HOME = {
    "Search": "search",
    "Skipped": "search",
    "last_complete": "search",
    "last_complete_on_all_ranks": "agreed",
    "look": "search",
    "whole_file": "placing",
    "why_incomplete": "whole",
}

__all__ = [
    "last_complete",
    "last_complete_on_all_ranks",
    "look",
    "Search",
    "Skipped",
    "whole_file",
    "why_incomplete",
]

__getattr__, __dir__ = names(__name__, _HOME)
