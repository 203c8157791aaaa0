"""What torch, numpy and Lightning show after they were imported by the script.

Does not cover: CUDA.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from typing import Any

CHANGED = ("TORCHINDUCTOR_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK", "PL_GLOBAL_SEED", "PL_SEED_WORKERS")


def facts() -> dict[str, Any]:
    import numpy
    import torch

    before = torch.initial_seed()
    x = torch.ones(400, 400, requires_grad=True)
    (x @ x).sum().backward()
    event_loop = asyncio.new_event_loop()
    event_loop.close()
    return {
        "torch: threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch: product": float((x @ x).sum()),
        "torch: defaults": [str(torch.get_default_dtype()), torch.is_grad_enabled()],
        "torch: deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch: cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
        "torch: sharing": torch.multiprocessing.get_sharing_strategy(),
        "unique torch: seed": before,
        "unique torch: first number": float(torch.rand(1)),
        "unique numpy: first number": float(numpy.random.rand()),
        "unique numpy: new generator": float(numpy.random.default_rng().random()),
        "torch: seeded": _seeded(),
        "numpy: product": float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()),
        "pools": _pools(),
        "asyncio: policy": type(asyncio.get_event_loop_policy()).__name__,
        "asyncio: loop": type(event_loop).__name__,
        "main: torch is the module": sys.modules["torch"] is torch,
    }


def _seeded() -> list[float]:
    """The script's own seeds rule from here on, as ever."""
    import random

    import numpy
    import torch

    torch.manual_seed(1)
    numpy.random.seed(1)
    random.seed(1)
    return [float(torch.randn(3).sum()), float(numpy.random.rand()), random.random()]


def _pools() -> Any:
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "threadpoolctl is not installed"
    return sorted([each["user_api"], each["internal_api"], each["num_threads"]] for each in threadpool_info())


def lightning() -> dict[str, Any]:
    """Three steps of a small training on both ranks, and what Lightning knew of its rank before that."""
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.utilities.rank_zero import rank_zero_only
    from torchmetrics.utilities.prints import rank_zero_only as of_metrics

    before = [rank_zero_only.rank, of_metrics.rank]  # type: ignore[attr-defined]
    pl.seed_everything(3)
    off = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_steps=3, accelerator="cpu", devices=2, strategy="ddp", enable_progress_bar=False, **off
    )
    model = BoringModel()
    trainer.fit(model)
    torch.distributed.destroy_process_group()
    return {
        "lightning: ranks at import": before,
        "lightning: rank": [trainer.global_rank, trainer.local_rank, trainer.world_size],
        "lightning: steps": trainer.global_step,
        "lightning: weights": [float(each.detach().double().sum()) for each in model.parameters()],
        "lightning: variables": {name: os.environ.get(name) for name in CHANGED},
    }
