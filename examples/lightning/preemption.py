"""Preemption in Lightning: SIGTERM saves a checkpoint at the same step of all ranks, and ends the job with 0.

    ft_launcher --nproc-per-node=2 preemption.py

Send SIGTERM to the launcher while it trains, then start it again: it resumes from the step where it stopped. Works
under torchrun, and with one process, too. See docs/lightning-preemption.md.
"""

from __future__ import annotations

import argparse
import os

import lightning.pytorch as pl
from digits import Classifier, Digits

from holdfast.ptl_resiliency import PreemptionCallback

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dir", default="digits-run", help="checkpoints")
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()

pl.seed_everything(1)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp",
    max_epochs=arguments.epochs,
    use_distributed_sampler=False,  # the loader has each rank's share already
    logger=False,
    callbacks=[
        PreemptionCallback(),
        pl.callbacks.ModelCheckpoint(dirpath=arguments.dir, save_last=True),
    ],
)
trainer.fit(Classifier(), datamodule=Digits(), ckpt_path="last")
