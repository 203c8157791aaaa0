"""Real checkpoints of each kind, made once by what makes them for users."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Make = Callable[..., Path]


def made_by_torch(place: Path) -> Path:
    path = place / "step-00000040.pt"
    torch.save({"weights": {str(n): torch.randn(50) for n in range(5)}, "step": 40}, path)
    return path


def made_by_lightning(place: Path) -> Path:
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.demos.boring_classes import BoringModel

    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    model = BoringModel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, torch.utils.data.DataLoader(torch.randn(4, 32)))
    trainer.save_checkpoint(place / "epoch=0-step=1.ckpt")
    return place / "epoch=0-step=1.ckpt"


def made_by_dcp(place: Path, name: str = "step-40") -> Path:
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 30)).sum().backward()
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 40}
        dcp.save(state, checkpoint_id=place / name, no_dist=True)
    return place / name


def made_by_lightning_s_sharded_strategies(place: Path) -> Path:
    """FSDP needs a GPU in Lightning; this is what it writes."""
    path = made_by_dcp(place, "epoch=0-step=40.ckpt")
    torch.save({"global_step": 40}, path / "meta.pt")
    return path


HUGGING_FACE = """
import sys, torch, transformers
config = transformers.BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
)
arguments = transformers.TrainingArguments(
    output_dir=sys.argv[1], max_steps=2, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
    per_device_train_batch_size=1, dataloader_pin_memory=False,
)
data = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(0)}] * 4
model = transformers.BertForSequenceClassification(config)
transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
"""


def made_by_hugging_face(place: Path) -> Path:
    """In a process of its own: it leaves threads."""
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        pytest.skip("transformers and accelerate are not installed")
    command = [sys.executable, "-c", HUGGING_FACE, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return place / "checkpoint-2"


def made_in_deepspeed_s_layout(place: Path) -> Path:
    path = place / "global_step40"
    path.mkdir()
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        torch.save({"module": torch.randn(40)}, path / name)
    return path


def made_with_an_index(place: Path) -> Path:
    """Weights in several files, as Hugging Face writes big models and torch its safetensors checkpoints."""
    save_file: Any = pytest.importorskip("safetensors.torch").save_file
    path = place / "checkpoint-40"
    path.mkdir()
    for number in (1, 2):
        save_file({f"w{number}": torch.randn(20)}, path / f"model-0000{number}-of-00002.safetensors")
    index = {"weight_map": {f"w{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "trainer_state.json").write_text('{"global_step": 40}')
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "torch": made_by_torch,
    "lightning": made_by_lightning,
    "lightning sharded": made_by_lightning_s_sharded_strategies,
    "hugging face": made_by_hugging_face,
    "dcp": made_by_dcp,
    "deepspeed's layout": made_in_deepspeed_s_layout,
    "safetensors index": made_with_an_index,
}


@pytest.fixture(scope="session")
def _made() -> dict[str, Path]:
    """Those that were made already."""
    return {}


@pytest.fixture
def make(_made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Make:
    """`make(kind)`: a copy of that checkpoint, in this test's folder, under its name or another one."""

    def copy(kind: str, name: str = "") -> Path:
        if kind not in _made:
            _made[kind] = MAKERS[kind](tmp_path_factory.mktemp("made"))
        original = _made[kind]
        target = tmp_path / (name or original.name)
        if original.is_dir():
            shutil.copytree(original, target)
        else:
            shutil.copy2(original, target)
        return target

    return copy
