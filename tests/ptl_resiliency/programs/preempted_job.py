"""Trains tests.ptl_resiliency.preempted's model on all ranks of the job; run by ft_launcher, torchrun or python.

    preempted_job.py FOLDER [--epochs N] [--step SECONDS] [--workers N] [--moment TEXT]
                            [--who launcher|rank|all|none] [--and-undisturbed]

At the moment (`train 4`, `validation at 6 batch 1`, see `Learner`; `between 4`; `save 4`; `setup`: the last rank has
come to the callback's, the first has not) one rank gives the signal; with `none` the launchers could not agree.
At the end rank 0 writes `weights`; each rank writes the sums of the batches of each start to `trained-R-N`, and says
how many process groups there were while it trained, and how many collectives our callbacks began.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import bare_lightning  # noqa: F401, before all that loads Lightning
import lightning.pytorch as pl
import psutil
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.stop.page import PageFile, page_path, write
from holdfast.fault_tolerance.stop.rules import WITHDRAW, Word
from holdfast.ptl_resiliency import PreemptionCallback
from tests.ptl_resiliency.preempted import Learner, weights

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--step", type=float, default=0.0)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--moment", default="")
parser.add_argument("--who", default="launcher")
parser.add_argument("--and-undisturbed", action="store_true")
arguments = parser.parse_args()

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def give_signal() -> None:
    """To the processes that `--who` selects.

    All: as Slurm does it, to launcher, monitor, ranks and workers, which come first here.
    """
    if arguments.who == "none":
        page = PageFile(page_path(os.environ[FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR]))
        write(page.words, Word(WITHDRAW, 1))
        page.close()
        return
    me = psutil.Process()
    launcher = me.parent()
    workers = [each for each in me.children() if each.name().startswith("pt_data_worker")]
    targets = {
        "launcher": [launcher],
        "rank": [me],
        "all": [*workers, *launcher.children(recursive=True), launcher],
    }[arguments.who]
    if arguments.who == "all" and len(workers) != arguments.workers:
        sys.exit(f"{arguments.workers} workers expected, these found: {me.children()}")
    print(f"SIGNAL at {arguments.moment} to {len(targets)}", flush=True)
    for process in targets:  # type: ignore[attr-defined]
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)


collectives = groups = 0
real_all_reduce = dist.all_reduce


def counted(*args: object, **kwargs: object) -> object:
    """`all_reduce`, which is the only one that the callback could use while it trains."""
    global collectives
    collectives += sys._getframe(1).f_globals["__name__"].startswith("holdfast.")
    return real_all_reduce(*args, **kwargs)


dist.all_reduce = counted


class Interrupted(TorchCheckpointIO):
    """The moment `save N`: in the middle of the save of that step, on rank 0."""

    def save_checkpoint(self, checkpoint: dict[str, object], *args: object, **kwargs: object) -> None:
        if arguments.moment == f"save {checkpoint['global_step']}":
            give_signal()
        super().save_checkpoint(checkpoint, *args, **kwargs)


class Steps(pl.Callback):
    """Steps of some length, and what is done between two; comes before the callback that is tested."""

    def setup(self, *rest: object, **more: object) -> None:
        if arguments.moment == "setup" and RANK == 0:
            time.sleep(1.0)  # in which the other one continues to where it waits
            give_signal()
            time.sleep(3600)

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: object) -> None:
        if arguments.moment == f"between {trainer.global_step}" and RANK == RANKS - 1:
            give_signal()
        if RANK == 0:
            os.write(1, f"STEP {trainer.global_step}\n".encode())
        global groups
        groups = max(groups, len(dist.distributed_c10d._world.pg_map))
        time.sleep(arguments.step)


def train(folder: Path, model: Learner, *callbacks: pl.Callback) -> None:
    """Resumes from the folder's last checkpoint; rank 0 leaves the weights in it, and each rank what it has trained."""
    folder.mkdir(exist_ok=True)
    start = len(list(folder.glob(f"trained-{RANK}-*")))
    trainer = pl.Trainer(
        accelerator="cpu",
        num_nodes=RANKS // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if RANKS > 1 else "auto",
        max_epochs=arguments.epochs,
        val_check_interval=3,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[Interrupted()],
        callbacks=[*callbacks, ModelCheckpoint(dirpath=folder, save_last=True, every_n_train_steps=2)],
    )
    try:
        trainer.fit(model, ckpt_path="last")
    finally:
        (folder / f"trained-{RANK}-{start}").write_text(json.dumps(model.trained))
    if RANK == 0:
        torch.save(weights(model), folder / "weights")


concerned = RANK == RANKS - 1 or arguments.who == "none"
model = Learner({arguments.moment: give_signal} if concerned else {}, arguments.workers)
try:
    train(arguments.folder, model, Steps(), PreemptionCallback())
finally:
    os.write(1, f"COLLECTIVES {collectives} in {groups} groups\n".encode())
if arguments.and_undisturbed:
    arguments.moment = ""
    train(arguments.folder.with_name(f"{arguments.folder.name}-undisturbed"), Learner())
