"""Trains with the documents' Lightning examples, which import the second name. Under a launcher. Argument: a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests" / "ptl_resiliency" / "programs"),
    str(ROOT / "examples" / "lightning"),
]

import bare_lightning  # noqa: E402, F401, before all that loads Lightning
import lightning.pytorch as pl  # noqa: E402
from digits import Classifier, Digits  # noqa: E402

from tests.compat import documents  # noqa: E402

FOLDER = Path(sys.argv[1])

for number, snippet in enumerate(documents.LIGHTNING):
    values: dict[str, Any] = {
        "pl": pl,
        "tmp_path": FOLDER,
        "other_callbacks": [],
        "trainer_arguments": {
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": 3,
            "limit_val_batches": 0,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        },
    }
    exec(documents.lightning_filled_in(snippet), values)
    trainer = values["trainer"]
    trainer.fit(Classifier(), datamodule=Digits())
    kinds = [f"{type(each).__module__}.{type(each).__name__}" for each in trainer.callbacks]
    print(
        f"ENDED|{number}|{trainer.global_step}|{[kind for kind in kinds if 'holdfast' in kind]}", flush=True
    )
