"""What lies beside checkpoints, or in them, and is none: it neither counts nor stands in the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast import checkpoints

Make = Callable[..., Path]


def test_links_that_lead_in_a_circle(make: Make, tmp_path: Path) -> None:
    made = make("torch", "step-5.pt")
    (tmp_path / "last.ckpt").symlink_to("last.ckpt")
    (tmp_path / "a.pt").symlink_to("b.pt")
    (tmp_path / "b.pt").symlink_to("a.pt")
    assert checkpoints.last_complete(tmp_path) == made


def test_hidden_files_are_nobody_s_checkpoints(make: Make, tmp_path: Path) -> None:
    made = make("torch", "step-2.pt")
    make("torch", ".step-3.pt")
    make("dcp", ".step-4")
    assert checkpoints.look(tmp_path) == checkpoints.Search(made, ())


def test_a_folder_with_a_step_in_its_name_need_be_no_checkpoint(make: Make, tmp_path: Path) -> None:
    made = make("torch", "step-2.pt")
    for name in ("logs-step-3", "my_step2_notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.txt").write_text("what happened")
    assert checkpoints.look(tmp_path) == checkpoints.Search(made, ())
    (tmp_path / "epoch=1-step-9").mkdir()  # a job was killed before it wrote anything
    assert [each.path.name for each in checkpoints.look(tmp_path).skipped] == ["epoch=1-step-9"]
    (tmp_path / "my-run-step-10" / "rank0").mkdir(parents=True)
    torch.save({"w": torch.zeros(3)}, tmp_path / "my-run-step-10" / "rank0" / "model.pt")
    assert checkpoints.look(tmp_path).newest == tmp_path / "my-run-step-10"


def test_of_unfinished_ones_only_those_are_said_that_would_be_newer(make: Make, tmp_path: Path) -> None:
    make("torch", "step-6.pt")
    for name in (".step-3.pt.partial", "step-6.pt.tmp", "tmp-checkpoint-5", "notes.tmp", "tmp-download"):
        (tmp_path / name).touch()
    said: list[str] = []
    assert checkpoints.last_complete(tmp_path, said.append) == tmp_path / "step-6.pt" and said == []
    (tmp_path / ".step-9.pt.partial").touch()
    (tmp_path / ".last.ckpt.partial").touch()  # no step: it was written later
    checkpoints.last_complete(tmp_path, said.append)
    assert ["step-9" in said[1], "last.ckpt" in said[0], len(said)] == [True, True, 2]
    (tmp_path / "step-6.pt").unlink()
    names = {each.path.name for each in checkpoints.look(tmp_path).skipped}
    assert {".step-3.pt.partial", "tmp-checkpoint-5"} < names and not {"notes.tmp", "tmp-download"} & names


def hugging_face(place: Path) -> Path:
    place.mkdir(parents=True)
    torch.save({"w": torch.zeros(3)}, place / "pytorch_model.bin")
    (place / "trainer_state.json").write_text('{"global_step": 14}')
    (place / "config.json").write_text("{}")
    return place


@pytest.mark.parametrize("content", ["", "a line of a log", '{"loss": 1}\n{"loss": 2}\n'])
def test_a_user_s_json_is_not_judged(content: str, tmp_path: Path) -> None:
    made = hugging_face(tmp_path / "checkpoint-14")
    for name in ("log.json", "metrics.json", "books.index.json"):
        (made / name).write_text(content)
    assert checkpoints.why_incomplete(made) == ""
    (made / "config.json").write_text(content)
    assert "config.json is cut off" in checkpoints.why_incomplete(made)


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    made = hugging_face(tmp_path / "checkpoint-14")
    (made / "optimizer.pt").mkdir()
    assert checkpoints.why_incomplete(made) == "optimizer.pt is a folder"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "more.bin", "adapter_config.json"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    made = hugging_face(tmp_path / "checkpoint-14")
    os.mkfifo(made / name)
    assert checkpoints.why_incomplete(made) == f"{name} is no regular file"
    os.mkfifo(tmp_path / "step-99.pt")
    assert checkpoints.why_incomplete(tmp_path / "step-99.pt") == "is no regular file"
    assert checkpoints.last_complete(tmp_path) is None


def test_metadata_that_name_no_file(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "step-3"
    place.mkdir()
    (place / ".metadata").write_bytes(b"\x80\x04N.")
    assert checkpoints.why_incomplete(place) == "has a .metadata that names no file"
    made = make("dcp")
    (made / ".metadata").write_bytes(b"\x80\x04N.")
    assert checkpoints.why_incomplete(made) == "has a .metadata that names no file"
