"""Straggler detection in Lightning: scores of all ranks in the log, and as metrics in the logger.

    ft_launcher --nproc-per-node=2 stragglers.py --slow-rank=1

Works under torchrun, and with one process, too. Without a GPU the training step is scored. See
docs/lightning-stragglers.md.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import lightning.pytorch as pl
import torch
from digits import Classifier, Digits

from holdfast.ptl_resiliency import StragglerDetectionCallback

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dir", default="digits-run", help="checkpoints and metrics")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--slow-rank", type=int, default=-1, help="make this rank slow, to see it found")
parser.add_argument("--stop", action="store_true", help="stop the training where a rank is slow")
arguments = parser.parse_args()


class SlowClassifier(Classifier):
    """One rank of which takes 5 ms longer for each step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_rank == arguments.slow_rank:
            time.sleep(0.005)
        return super().training_step(batch, batch_idx)


pl.seed_everything(1)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp",
    max_epochs=arguments.epochs,
    use_distributed_sampler=False,  # the loader has each rank's share already
    logger=pl.loggers.CSVLogger(arguments.dir),
    enable_progress_bar=False,
    callbacks=[
        StragglerDetectionCallback(
            report_time_interval=2.0,  # a few hundred seconds in real training
            calc_relative_gpu_perf=True,
            calc_individual_gpu_perf=True,
            num_gpu_perf_scores_to_print=3,
            gpu_relative_perf_threshold=0.7,
            gpu_individual_perf_threshold=0.7,
            stop_if_detected=arguments.stop,
            stop_on="scores",  # two ranks have no verdicts; leave it out with three and more
        ),
        pl.callbacks.ModelCheckpoint(dirpath=arguments.dir, save_last=True),
    ],
)
trainer.fit(SlowClassifier(), datamodule=Digits(), ckpt_path="last")
