"""Checkpoints on the disk: the newest one that is complete, why others are not, and writing one whole.

    from holdfast import checkpoints

    newest = checkpoints.last_complete("checkpoints")            # a Path or None; says what it skips, and why

For Lightning (`.ckpt`, also sharded), Hugging Face (`checkpoint-N`), torch.distributed.checkpoint and `torch.save`.
Nothing in a checkpoint is executed, no tensor is read, and importing it imports no torch.
"""

from __future__ import annotations

from .atomic import whole_file
from .complete import Search, Skipped, last_complete, last_complete_on_all_ranks, look, why_incomplete

__all__ = [
    "last_complete",
    "last_complete_on_all_ranks",
    "look",
    "Search",
    "Skipped",
    "whole_file",
    "why_incomplete",
]
