"""A training of milliseconds with `transformers.Trainer`, the same in each run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

STEPS = 20
"""Of an epoch, where gradients are not accumulated."""
VERSION = transformers.__version__
IS_4_46 = VERSION.startswith("4.46.")
HAS_RUN_EPOCH = hasattr(Trainer, "_run_epoch")
LOADS_TO_CPU_0 = "map_location = self.args.device if self.args.world_size > 1" in inspect.getsource(
    Trainer._load_optimizer_and_scheduler
)
"""Several ranks on CPU cannot resume then: torch 2.13 refuses `map_location="cpu:0"`."""


class Numbers(Dataset[Any]):
    """So many examples of a line."""

    def __init__(self, examples: int = 2 * STEPS) -> None:
        self._inputs = torch.randn(examples, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self._inputs[index], "labels": self._inputs[index].sum()}


class Line(torch.nn.Module):
    """With dropout, so that the random state of a checkpoint counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layer(self.dropout(inputs)).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


class Doing(TrainerCallback):
    """Does `deeds` at hooks: the key is the hook and the step, `on_step_end 3`; each once."""

    def __init__(self, deeds: dict[str, Callable[[], object]]) -> None:
        self._deeds = deeds
        self.seen = list[str]()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def hook(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            moment = f"{name} {state.global_step}"
            self.seen.append(moment)
            if deed := self._deeds.pop(moment, None):
                deed()

        return hook


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    """Of a trainer on one CPU that shows and logs nothing."""
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": 1,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "learning_rate": 0.1,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    if "save_steps" in changes:
        given["save_strategy"] = "steps"
    if "eval_steps" in changes:
        given["eval_strategy"] = "steps"
    return TrainingArguments(**{**given, **changes})


def trainer(
    folder: Path,
    callbacks: Sequence[Any] = (),
    deeds: dict[str, Callable[[], object]] | None = None,
    **changes: Any,
) -> Trainer:
    """One that has not trained yet. `deeds` are done by a callback before the given ones."""
    set_seed(7)
    made = Trainer(
        model=Line(),
        args=arguments(folder, **changes),
        train_dataset=Numbers(),
        eval_dataset=Numbers(8),
        callbacks=[Doing(dict(deeds or {})), *callbacks],
    )
    made.remove_callback(PrinterCallback)
    return made


def weights(made: Trainer) -> list[float]:
    """Every number of the model."""
    return [number for tensor in made.model.state_dict().values() for number in tensor.flatten().tolist()]


def said(caplog: Any, text: str) -> int:
    """In how many lines of the log."""
    return sum(text in record.getMessage() for record in caplog.records)
