"""Fault tolerance in Lightning by heartbeats.

    ft_launcher --nproc-per-node=2 --max-restarts=3 fault_tolerance.py

Kill a rank, or stop one with SIGSTOP, while it trains: the job resumes from its last checkpoint. See docs/lightning.md.
"""

from __future__ import annotations

import argparse
import os

import lightning.pytorch as pl
from digits import Classifier, Digits
from lightning.pytorch.callbacks import ModelCheckpoint

from holdfast.ptl_resiliency import FaultToleranceCallback

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument(
    "--dir", default="digits-run", help="checkpoints and learned timeouts, shared between nodes"
)
parser.add_argument("--epochs", type=int, default=5)
arguments = parser.parse_args()

pl.seed_everything(1)
fault_tol_cb = FaultToleranceCallback(
    exp_dir=os.path.join(arguments.dir, "ft_state"),
)
checkpoint = ModelCheckpoint(dirpath=arguments.dir, save_last=True, every_n_train_steps=20)

trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp",
    max_epochs=arguments.epochs,
    use_distributed_sampler=False,  # the loader has each rank's share already
    logger=False,
    callbacks=[fault_tol_cb, checkpoint],
)
# "last": the newest checkpoint if there is one, so that the same command starts and resumes.
trainer.fit(Classifier(), datamodule=Digits(), ckpt_path="last")
