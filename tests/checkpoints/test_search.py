"""Which checkpoint is the newest complete one, and what is said of the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast import checkpoints
from holdfast.checkpoints.complete import step_of

Make = Callable[..., Path]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=400-v2.ckpt", 400),
        ("last-v1.ckpt", None),
        ("checkpoint-500", 500),
        ("iter_0000100", 100),
        ("global_step12", 12),
        ("step-00000040.pt", 40),
        ("epoch=3-val_loss=0.25.ckpt", None),
        ("hpc_ckpt_3.ckpt", None),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


@pytest.mark.parametrize(
    ("kind", "names", "broken"),
    [
        ("torch", ["step-5.pt", "step-10.pt", "step-100.pt"], ""),
        ("torch", ["epoch=0-step=9.ckpt", "epoch=1-step=10.ckpt", "epoch=1-step=10-v1.ckpt"], ""),
        ("dcp", ["step-9", "step-10", "step-11"], "__0_0.distcp"),
        (
            "deepspeed's layout",
            ["global_step9", "global_step10", "global_step11"],
            "mp_rank_00_model_states.pt",
        ),
    ],
)
def test_the_newest_that_is_complete(
    kind: str, names: list[str], broken: str, make: Make, tmp_path: Path
) -> None:
    """By the step of their names, whatever order they were written in; the damaged one is named, with the reason."""
    for name in reversed(names):
        make(kind, name)
    assert checkpoints.last_complete(tmp_path) == tmp_path / names[2]
    cut(tmp_path / names[2] / broken if broken else tmp_path / names[2])
    said: list[str] = []
    assert checkpoints.last_complete(tmp_path, said.append) == tmp_path / names[1]
    (line,) = said
    assert line.startswith(f"checkpoint skipped, resuming from {names[1]}: {tmp_path / names[2]} ")
    assert "bytes" in line and checkpoints.look(tmp_path).skipped[0].path == tmp_path / names[2]


def test_without_steps_the_last_written_is_the_newest(make: Make, tmp_path: Path) -> None:
    """Lightning's `last.ckpt` beside one that tells its step."""
    for seconds, name in enumerate(["epoch=9-step=90.ckpt", "last.ckpt", "last-v1.ckpt"]):
        os.utime(make("torch", name), (seconds, seconds))
    assert checkpoints.last_complete(tmp_path) == tmp_path / "last-v1.ckpt"
    os.utime(tmp_path / "last.ckpt", (60, 60))
    assert checkpoints.last_complete(tmp_path) == tmp_path / "last.ckpt"


def test_links_and_latest_files_fool_nobody(make: Make, tmp_path: Path) -> None:
    make("torch", "step-5.pt")
    cut(make("torch", "step-10.pt"))
    (tmp_path / "step-99.pt").symlink_to("step-10.pt")
    (tmp_path / "last.ckpt").symlink_to("nowhere.ckpt")
    (tmp_path / "latest").write_text("step-10.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    (tmp_path / "lightning_logs").mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"the final model of an earlier run")
    assert checkpoints.last_complete(tmp_path) == tmp_path / "step-5.pt"
    (tmp_path / "elsewhere").mkdir()
    make("torch", "elsewhere/step-7.pt")
    (tmp_path / "step-7.pt").symlink_to("elsewhere/step-7.pt")  # a checkpoint that lies on another disk
    assert checkpoints.last_complete(tmp_path) == tmp_path / "step-7.pt"


def test_none_at_all(tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    assert checkpoints.last_complete(tmp_path / "absent") is None
    assert checkpoints.last_complete(tmp_path) is None and caplog.text == ""
    cut(make("torch", "step-5.pt"))
    make("torch", ".step-6.pt.partial")
    assert checkpoints.last_complete(tmp_path) is None
    assert "checkpoint skipped, and no other one is complete" in caplog.text
    assert ".step-6.pt.partial was not finished, according to its name" in caplog.text
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        checkpoints.last_complete(tmp_path / "file")
    with pytest.raises(OSError, match="cannot be looked for"):
        checkpoints.last_complete_on_all_ranks(tmp_path / "file")
    make("torch", os.fsdecode(b"step-\xff-7.pt"))
    with pytest.raises(OSError, match="can't encode"):
        checkpoints.last_complete_on_all_ranks(tmp_path)
    assert (
        r"resuming from step-\udcff-7.pt: " in caplog.text and caplog.text.isascii()
    )  # any file can hold it


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "step-1.pt"
    with checkpoints.whole_file(path) as unfinished:
        torch.save({"step": 1}, unfinished)
        assert not path.exists()
    assert checkpoints.last_complete(path.parent) == path and os.listdir(path.parent) == ["step-1.pt"]
    with pytest.raises(KeyError), checkpoints.whole_file(path) as unfinished:
        unfinished.write_bytes(b"half")
        raise KeyError
    assert torch.load(path)["step"] == 1 and os.listdir(path.parent) == ["step-1.pt"]


def test_that_there_is_none_is_said_only_where_all_could_be_read(make: Make, tmp_path: Path) -> None:
    """Or a disk that is gone for a moment would let a training begin from the beginning."""
    (tmp_path / "step-10").mkdir()
    (tmp_path / "step-10" / "weights.pt").symlink_to("weights.pt")  # which the kernel refuses to follow
    with pytest.raises(OSError, match="symbolic links"):
        checkpoints.last_complete(tmp_path)
    made = make("torch", "step-5.pt")
    assert checkpoints.last_complete_on_all_ranks(tmp_path) == made  # there is no other rank
    found = checkpoints.look(tmp_path)
    assert found.newest == tmp_path / "step-5.pt" and "cannot be read" in found.skipped[0].why


def test_of_accelerate_in_a_folder_named_like_hugging_face_s(tmp_path: Path) -> None:
    """Many loops give `save_state` such names; there is no `trainer_state.json`, and random states are written last."""
    place = tmp_path / "checkpoint-40"
    place.mkdir()
    for name in ("pytorch_model.bin", "optimizer.bin", "random_states_0.pkl"):
        assert checkpoints.look(tmp_path).newest is None
        torch.save({"a": torch.zeros(20)}, place / name)
    assert checkpoints.last_complete(tmp_path) == place
    cut(place / "random_states_0.pkl")
    assert checkpoints.last_complete(tmp_path) is None
