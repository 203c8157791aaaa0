"""The training text and the order in which it is read.

The text is the source of Python's own standard library: every machine has it, and one Python version has the same
everywhere. What always holds: a batch is a function of the step, the rank and the number of ranks. So there is no
position to save, and a run that was interrupted reads exactly what it would have read.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY = 128


def load_text(limit: int = 1_000_000) -> Tensor:
    """The first `limit` bytes of the standard library's modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"), key=lambda path: path.name):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    # One byte is one character; the few beyond ASCII become the last one.
    return torch.frombuffer(text[:limit], dtype=torch.uint8).clamp(max=VOCABULARY - 1)


class Batches:
    """Windows of text in an order that is shuffled anew for each epoch."""

    def __init__(
        self, text: Tensor, context: int, batch_size: int, rank: int, world_size: int, seed: int
    ) -> None:
        self._windows = text[: (len(text) - 1) // context * context + 1].unfold(0, context + 1, context)
        self._batch_size = batch_size
        self._first = rank * batch_size
        self._per_step = world_size * batch_size
        self._seed = seed
        self._epoch, self._order = -1, torch.empty(0)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """This rank's batch of a step: characters, and the characters that follow them."""
        epoch, position = divmod(step, len(self._windows) // self._per_step)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._epoch, self._order = epoch, torch.randperm(len(self._windows), generator=generator)
        start = position * self._per_step + self._first
        windows = self._windows[self._order[start : start + self._batch_size]].long()
        return windows[:, :-1], windows[:, 1:]
