"""The data loaders that a Lightning trainer takes into use: their workers stay when the signals come.

What always holds: Lightning's seeding of workers stays where it would be. Does not cover: what staying means
(`holdfast.preemption.loader_workers`).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from holdfast.patches import Patches
from holdfast.preemption.loader_workers import InitFn, StayingWorkers


class Loaders(StayingWorkers):
    """The loaders of one trainer."""

    def watch(self, trainer: Any, patches: Patches) -> None:
        """From now on, each loader that this trainer takes into use has workers that stay."""

        def process(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            for loader in (*args, *kwargs.values()):
                self.protect(loader, trainer.global_rank)
            return original(*args, **kwargs)

        if callable(getattr(trainer.strategy, "process_dataloader", None)):
            patches.wrap(trainer.strategy, "process_dataloader", process)

    def protect(self, loader: Any, rank: int) -> None:
        """Before the loader's iterator is made."""
        self.of(loader, _seeding(rank))


def _seeding(rank: int) -> InitFn | None:
    """What Lightning would give a loader without a `worker_init_fn` (`seed_everything(workers=True)`)."""
    if not int(os.environ.get("PL_SEED_WORKERS") or 0):
        return None
    fabric = "lightning.fabric" if "lightning.fabric" in sys.modules else "lightning_fabric"
    return functools.partial(import_module(f"{fabric}.utilities.seed").pl_worker_init_function, rank=rank)
