"""Fault tolerance in Lightning by sections: set-up, step and checkpointing have a limit each.

    ft_launcher --nproc-per-node=2 --max-restarts=3 \
        --ft-rank-section-timeouts=setup:600,step:180,checkpointing:420 sections.py

See docs/lightning.md.
"""

from __future__ import annotations

import argparse
import os

import lightning.pytorch as pl
from digits import Classifier, Digits

from holdfast.fault_tolerance import WorkloadAction, WorkloadControlRequest
from holdfast.ptl_resiliency import FaultToleranceSectionsCallback

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument(
    "--dir", default="digits-run", help="checkpoints and learned timeouts, shared between nodes"
)
parser.add_argument("--epochs", type=int, default=5)
arguments = parser.parse_args()


def policy(exception: Exception) -> WorkloadControlRequest | None:
    """What else than a restart to ask for after an exception; None for a restart."""
    if isinstance(exception, ValueError):  # wrong data stay wrong: end the job
        return WorkloadControlRequest(WorkloadAction.ShutdownWorkload, str(exception))
    return None


pl.seed_everything(1)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp",
    max_epochs=arguments.epochs,
    use_distributed_sampler=False,  # the loader has each rank's share already
    logger=False,
    callbacks=[
        FaultToleranceSectionsCallback(
            exp_dir=os.path.join(arguments.dir, "ft_state"),
            exc_handling_policy=policy,
        ),
        pl.callbacks.ModelCheckpoint(dirpath=arguments.dir, save_last=True, every_n_train_steps=20),
    ],
)
trainer.fit(Classifier(), datamodule=Digits(), ckpt_path="last")
