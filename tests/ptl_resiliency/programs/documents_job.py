"""Runs the documents' examples one after another on the ranks that it was started with, and says how each ended.

Arguments: a folder. Under ft_launcher all of them run, otherwise only those that need no launcher.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import bare_lightning  # noqa: F401, before all that loads Lightning
import lightning.pytorch as pl
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "lightning"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import documents
from digits import Classifier, Digits

from holdfast.ptl_resiliency import FaultToleranceCallback, StragglerDetectionCallback

STEPS = 24
"""More than the 16 steps without a report."""
FOLDER = Path(sys.argv[1])
logging.basicConfig(format="%(name)s|%(message)s", stream=sys.stdout)
for name in ("test_logger", "nemo_logger"):
    logging.getLogger(name).setLevel(logging.INFO)


class Term(pl.Callback):
    """This process gets SIGTERM in a step."""

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 5:
            os.kill(os.getpid(), signal.SIGTERM)


def arguments(name: str, **more: Any) -> dict[str, Any]:
    return {
        "accelerator": "cpu",
        "devices": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "max_steps": STEPS,
        "limit_val_batches": 1,
        "use_distributed_sampler": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": FOLDER / name,
        "logger": pl.loggers.CSVLogger(FOLDER / name, version=0),
        **more,
    }


def run(name: str, snippet: str, resume: bool = False, fit: bool = True, steps: int = STEPS) -> Any:
    """Run the example, and train with the trainer that it made."""
    values: dict[str, Any] = {
        "pl": pl,
        "FaultToleranceCallback": FaultToleranceCallback,
        "StragglerDetectionCallback": StragglerDetectionCallback,
        "tmp_path": FOLDER / "state",
        "trainer_arguments": arguments(name, max_steps=steps),
        "other_callbacks": [pl.callbacks.ModelCheckpoint(FOLDER / "saved", save_last=True)],
    }
    exec(documents.filled_in(snippet), values)
    trainer = values["trainer"]
    if fit:
        trainer.fit(Classifier(), datamodule=Digits(), ckpt_path="last" if resume else None)
        print(f"ENDED|{name}|{trainer.global_rank}|{trainer.global_step}", flush=True)
    return trainer


def nemo(name: str, snippet: str) -> None:
    """Those that make a trainer without any arguments: in a folder of its own, and for few steps."""
    (FOLDER / name).mkdir(parents=True)
    os.chdir(FOLDER / name)
    trainer = run(name, snippet, fit=False)
    trainer.fit_loop.epoch_loop.max_steps = STEPS
    for callback in trainer.callbacks:
        if isinstance(callback, pl.callbacks.ModelCheckpoint):
            callback.save_last = True
    if name == "preemption":
        trainer.callbacks.insert(0, Term())
    try:
        trainer.fit(Classifier(), datamodule=Digits())
    except SystemExit as stop:
        print(f"STOPPED|{name}|{stop.code}", flush=True)
    print(f"ENDED|{name}|{trainer.global_rank}|{trainer.global_step}", flush=True)


torch.set_num_threads(1)
(FOLDER / "state").mkdir(exist_ok=True)
quick = (
    "report_time_interval=300.0",
    "report_time_interval=0.001",
)  # so that a report comes within so few steps
if "LOCAL_WORLD_SIZE" in os.environ:
    run("fault-tolerance", documents.FAULT_TOLERANCE)
    run("with-resume", documents.WITH_RESUME, resume=True, steps=2 * STEPS)
    for number in documents.NUMBERS:
        snippet = documents.STRAGGLERS.replace(documents.NUMBERS[0], number).replace(*quick)
        run(number.replace("=", "-"), snippet)
    run("guide", documents.GUIDE_STRAGGLERS)
else:
    nemo("stragglers", documents.NEMO_STRAGGLERS)
    nemo("preemption", documents.NEMO_PREEMPTION)
