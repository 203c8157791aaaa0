"""Which checkpoint is the newest complete one, what is none, what is said of the others; and docs/checkpoints.md."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from holdfast import checkpoints
from holdfast.checkpoints.complete import step_of
from tests.pages import DOCS, block
from tests.processes import Spawner

from .conftest import HUGGING_FACE, Make


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_the_step_in_a_name() -> None:
    steps = {
        "epoch=3-step=400-v2.ckpt": 400,
        "last-v1.ckpt": None,
        "checkpoint-500": 500,
        "iter_0000100": 100,
        "global_step12": 12,
        "step-00000040.pt": 40,
        "epoch=3-val_loss=0.25.ckpt": None,
        "hpc_ckpt_3.ckpt": None,
    }
    assert {name: step_of(name) for name in steps} == steps


@pytest.mark.parametrize(
    ("kind", "in_order", "broken"),
    [
        ("torch", "step-5.pt step-10.pt step-100.pt", ""),
        ("torch", "epoch=0-step=9.ckpt epoch=1-step=10.ckpt epoch=1-step=10-v1.ckpt", ""),
        ("dcp", "step-9 step-10 step-11", "__0_0.distcp"),
        ("deepspeed's layout", "global_step9 global_step10 global_step11", "mp_rank_00_model_states.pt"),
    ],
)
def test_newest_that_is_complete(kind: str, in_order: str, broken: str, make: Make, tmp_path: Path) -> None:
    """By the step of their names, whatever order they were written in; the damaged one is named, with the reason."""
    names = in_order.split()
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
    for name, target in (("last", "nowhere"), ("loop", "loop"), ("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.ckpt").symlink_to(f"{target}.ckpt")
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
    assert r"resuming from step-\udcff-7.pt: " in caplog.text
    assert caplog.text.isascii()  # any file can hold it


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


def test_none_is_reported_only_where_all_could_be_read(make: Make, tmp_path: Path) -> None:
    """Or a disk that is gone for a moment would let a training begin from the beginning."""
    (tmp_path / "step-10").mkdir()
    (tmp_path / "step-10" / "weights.pt").symlink_to("weights.pt")  # which the kernel refuses to follow
    with pytest.raises(OSError, match="symbolic links"):
        checkpoints.last_complete(tmp_path)
    made = make("torch", "step-5.pt")
    assert checkpoints.last_complete_on_all_ranks(tmp_path) == made  # there is no other rank
    found = checkpoints.look(tmp_path)
    assert found.newest == tmp_path / "step-5.pt" and "cannot be read" in found.skipped[0].why


def test_accelerate_in_a_folder_named_like_hugging_face_s(tmp_path: Path) -> None:
    """Many loops give `save_state` such names; there is no `trainer_state.json`, and random states are written last."""
    place = tmp_path / "checkpoint-40"
    place.mkdir()
    for name in ("pytorch_model.bin", "optimizer.bin", "random_states_0.pkl"):
        assert checkpoints.look(tmp_path).newest is None
        torch.save({"a": torch.zeros(20)}, place / name)
    assert checkpoints.last_complete(tmp_path) == place
    cut(place / "random_states_0.pkl")
    assert checkpoints.last_complete(tmp_path) is None


# -- what lies beside checkpoints, or in them, and is none: it neither counts nor stands in the way


def test_hidden_files_and_other_folders_are_no_checkpoints(make: Make, tmp_path: Path) -> None:
    made = make("torch", "step-2.pt")
    make("torch", ".step-3.pt")
    make("dcp", ".step-4")
    for name in ("logs-step-3", "my_step2_notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.txt").write_text("what happened")
    assert checkpoints.look(tmp_path) == checkpoints.Search(made, ())
    (tmp_path / "epoch=1-step-9").mkdir()  # a job was killed before it wrote anything
    assert [each.path.name for each in checkpoints.look(tmp_path).skipped] == ["epoch=1-step-9"]
    (tmp_path / "my-run-step-10" / "rank0").mkdir(parents=True)
    torch.save({"w": torch.zeros(3)}, tmp_path / "my-run-step-10" / "rank0" / "model.pt")
    assert checkpoints.look(tmp_path).newest == tmp_path / "my-run-step-10"


def test_only_unfinished_ones_that_would_be_newer_are_named(make: Make, tmp_path: Path) -> None:
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


@pytest.mark.timeout(120)
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


# -- docs/checkpoints.md: its program with its fault, and its calls into frameworks


PAGE = DOCS / "checkpoints.md"


def call_of(framework: str) -> str:
    found = re.search(rf"^\| {re.escape(framework)} \| `(.*?)`", PAGE.read_text(), re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.slow
def test_the_program_skips_what_the_fault_left(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(block("checkpoints.md", "save.py"))
    first = spawn([sys.executable, "save.py"], cwd=tmp_path, env={"HOLDFAST_FAULT": "half_save@step=3"})
    assert first.wait() == -signal.SIGXFSZ
    second = spawn([sys.executable, "save.py"], cwd=tmp_path)
    assert second.wait() == 0
    skipped = "checkpoint skipped, resuming from step-2.pt"
    expected = f"{skipped}: checkpoints/step-3.pt is cut off, after 4096 bytes"
    assert f"holdfast: {expected}" in second.err() and expected in PAGE.read_text()
    assert second.out() == "begins after step 2\nends after step 5\n"


def test_lightning_resumes_from_it(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.demos.boring_classes import BoringModel

    (tmp_path / "checkpoints").mkdir()
    make("lightning", "checkpoints/epoch=0-step=1.ckpt")
    half = make("lightning", "checkpoints/epoch=0-step=2.ckpt")
    half.write_bytes(half.read_bytes()[:999])
    monkeypatch.chdir(tmp_path)
    trainer = pl.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=5,
    )  # fmt: skip
    model = BoringModel()
    model.train_dataloader = lambda: torch.utils.data.DataLoader(torch.randn(4, 32))
    model.val_dataloader = lambda: []
    eval(call_of("Lightning"), {"trainer": trainer, "model": model, "checkpoints": checkpoints})
    assert trainer.global_step == 3 and trainer.ckpt_path is not None


@pytest.mark.slow
def test_hugging_face_resumes_from_it(make: Make, tmp_path: Path, spawn: Spawner) -> None:
    whole = make("hugging face")
    half = tmp_path / "checkpoint-3"
    half.mkdir()
    (half / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes()[:500])
    program = HUGGING_FACE.replace("max_steps=2", "max_steps=3, logging_steps=1")
    plain = "transformers.Trainer(model=model, args=arguments, train_dataset=data)"
    assert plain in program
    program = program.replace(f"{plain}.train()", f"trainer = {plain}")
    program += "from holdfast import checkpoints\nnewest = checkpoints.last_complete(sys.argv[1])\n"
    program += f"{call_of('Hugging Face')}\nprint('loaded', newest.name, 'at', trainer.state.global_step)\n"
    job = spawn.python(program, str(tmp_path))
    assert job.wait() == 0, job.output()
    assert "loaded checkpoint-2 at 3" in job.out() and "checkpoint skipped" in job.err()
