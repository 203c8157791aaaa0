"""Runs the documents' examples one after another on one rank, with the imports that they have, and says how each ended.

Argument: a folder. The examples of NeMo's page run as without a launcher.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "lightning"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bare_lightning  # noqa: F401, before all that loads Lightning
import documents
import lightning.pytorch as pl
import torch
from digits import Classifier, Digits

from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
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


def run(name: str, snippet: str, resume: bool = False, fit: bool = True, steps: int = STEPS) -> Any:
    """Run the example, and train with the trainer that it made."""
    values: dict[str, Any] = {
        "pl": pl,
        "FaultToleranceCallback": FaultToleranceCallback,
        "StragglerDetectionCallback": StragglerDetectionCallback,
        "tmp_path": FOLDER / "state",
        "trainer_arguments": {
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": steps,
            "limit_val_batches": 1,
            "use_distributed_sampler": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": FOLDER / name,
            "logger": pl.loggers.CSVLogger(FOLDER / name, version=0),
        },
        "other_callbacks": [pl.callbacks.ModelCheckpoint(FOLDER / "saved", save_last=True)],
    }
    exec(documents.filled_in(snippet), values)
    trainer = values["trainer"]
    if fit:
        trainer.fit(Classifier(), datamodule=Digits(), ckpt_path="last" if resume else None)
        kinds = [f"{type(each).__module__}.{type(each).__name__}" for each in trainer.callbacks]
        (ours,) = (kind for kind in kinds if kind.startswith("holdfast."))
        print(f"ENDED|{name}|{trainer.global_step}|{ours}", flush=True)
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
    print(f"ENDED|{name}|{trainer.global_step}", flush=True)


torch.set_num_threads(1)
(FOLDER / "state").mkdir()
run("fault-tolerance", documents.FAULT_TOLERANCE)
run("with-resume", documents.WITH_RESUME, resume=True, steps=2 * STEPS)
quick = ("report_time_interval=300.0", "report_time_interval=0.001")  # a report within so few steps
for number in documents.NUMBERS:
    run(number, documents.STRAGGLERS.replace(documents.NUMBERS[0], number).replace(*quick))
run("guide", documents.GUIDE_STRAGGLERS)
del os.environ[FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR]
nemo("stragglers", documents.NEMO_STRAGGLERS)
nemo("preemption", documents.NEMO_PREEMPTION)
