"""Complete ones are found complete; cut anywhere, or with a file missing, they are not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.checkpoints import whole_file, why_incomplete
from holdfast.checkpoints.atomic import aside, put_in_place

from .conftest import MAKERS, Make


def files_of(checkpoint: Path) -> list[Path]:
    if checkpoint.is_file():
        return [checkpoint]
    return sorted(Path(place) / name for place, _, names in os.walk(checkpoint) for name in names)


@pytest.mark.parametrize("kind", MAKERS)
def test_cut_anywhere_it_is_not_complete(kind: str, make: Make) -> None:
    """Each file of it, at its edges and anywhere between."""
    checkpoint = make(kind)
    assert why_incomplete(checkpoint) == ""
    files = files_of(checkpoint)

    @settings(suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(files), st.floats(0, 1), st.sampled_from(["fraction", "first", "last"]))
    def cut(path: Path, fraction: float, where: str) -> None:
        whole = path.read_bytes()
        most = len(whole.rstrip() if path.suffix == ".json" else whole) - 1  # a line's end is no loss
        near = int(fraction * 40)
        length = {"fraction": int(fraction * len(whole)), "first": near, "last": most - near}[where]
        path.write_bytes(whole[: max(0, min(length, most))])
        try:
            why = why_incomplete(checkpoint)
            assert why and "\n" not in why, f"{path} with {length} of {len(whole)} bytes"
        finally:
            path.write_bytes(whole)

    cut()
    assert why_incomplete(checkpoint) == ""


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("dcp", ".metadata", "has no .metadata: not all ranks had written when it was left"),
        ("dcp", "__0_0.distcp", "lacks __0_0.distcp"),
        ("lightning sharded", "meta.pt", "has no meta.pt, which Lightning writes last"),
        ("hugging face", "trainer_state.json", "has no trainer_state.json, which is written last"),
        ("hugging face", "model.safetensors", "has no weights in it"),
        (
            "safetensors index",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json names model-00002-of-00002.safetensors, which is not there",
        ),
    ],
)
def test_a_file_that_is_missing(kind: str, name: str, why: str, make: Make) -> None:
    checkpoint = make(kind)
    (checkpoint / name).unlink()
    assert why_incomplete(checkpoint) == why


def test_what_is_said_of_other_things(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    cases = {
        b"": "is empty",
        b"not a checkpoint": "is no file of torch.save: it begins with b'not '",
        b"PK\x03\x04" + bytes(100): "is cut off, after 104 bytes",
    }
    for content, why in cases.items():
        path.write_bytes(content)
        assert why_incomplete(path) == why
    torch.save({"w": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    assert "format before 1.6" in why_incomplete(path)
    assert why_incomplete(tmp_path / "absent.pt") == "cannot be read: No such file or directory"
    assert why_incomplete(make("torch", ".step-1.pt.partial")) == "was not finished, according to its name"
    (tmp_path / "step-3").mkdir()
    assert why_incomplete(tmp_path / "step-3") == "has no weights in it"
    renamed = make("hugging face", "checkpoint-4")
    assert why_incomplete(renamed) == "has a trainer_state.json of step 2"


def test_missing_and_added_bytes_are_damage(make: Make) -> None:
    path = make("torch")
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + whole[264:])
    assert "is damaged" in why_incomplete(path)
    path.write_bytes(bytes(whole[:4]) + whole)
    assert "is damaged" in why_incomplete(path)


def test_a_zip_within_a_zip_is_not_taken_for_its_end(make: Make, tmp_path: Path) -> None:
    """A tensor that holds another checkpoint's bytes, and the file cut exactly behind them."""
    inner = make("torch").read_bytes()
    outer = tmp_path / "outer.pt"
    torch.save({"a": torch.frombuffer(bytearray(inner), dtype=torch.uint8)}, outer)
    whole = outer.read_bytes()
    outer.write_bytes(whole[: whole.index(inner) + len(inner)])
    assert "is damaged" in why_incomplete(outer)


def test_nothing_in_it_is_executed(tmp_path: Path) -> None:
    """A pickle that would make a file, as metadata and in a torch file."""

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "executed"),))

    import pickle

    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / ".metadata").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "step-1" / "__0_0.distcp").write_bytes(b"x")
    torch.save(Evil(), tmp_path / "x.pt")
    why_incomplete(tmp_path / "step-1")
    why_incomplete(tmp_path / "x.pt")
    assert not (tmp_path / "executed").exists()


def test_a_shard_that_lacks_one_byte_of_what_the_metadata_name(make: Make) -> None:
    checkpoint = make("dcp")
    shard = checkpoint / "__0_0.distcp"
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    assert why_incomplete(checkpoint) == f"has {size - 1} of at least {size} bytes of __0_0.distcp"


def test_a_big_file_is_not_read(tmp_path: Path) -> None:
    """64 MiB: the process reads less than one of them."""
    path = tmp_path / "big.pt"
    torch.save({"w": torch.zeros(16 << 20)}, path)

    def read_so_far() -> int:
        return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])

    before = read_so_far()
    assert why_incomplete(path) == ""
    assert read_so_far() - before < 1 << 20
    os.truncate(path, path.stat().st_size - 1)
    assert "is cut off" in why_incomplete(path)


# -- what a checkpoint that is written whole takes the place of, and what it does not


def test_what_is_no_file_stays(tmp_path: Path) -> None:
    """A pipe here; a device is as well no place for a checkpoint, and needs root to be lost."""
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link.pt", tmp_path / "folder"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    folder.mkdir()
    for place in (pipe, link, folder):
        with pytest.raises(OSError), whole_file(place) as unfinished:
            unfinished.write_bytes(b"all")
            pytest.fail("nothing may be calculated and written for a place that cannot be had")
    unfinished = tmp_path / ".pipe.partial"
    unfinished.write_bytes(b"all")
    with pytest.raises(OSError, match="something else than a file"):
        put_in_place(str(unfinished), str(pipe))
    assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink() and folder.is_dir()


@pytest.mark.parametrize("target", ["absent.pt", "there.pt", "loop.pt", "folder"])
def test_a_link_is_replaced(tmp_path: Path, target: str) -> None:
    (tmp_path / "there.pt").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "loop.pt"
    link.symlink_to(target)
    with whole_file(link) as unfinished:
        unfinished.write_bytes(b"all")
    assert link.read_bytes() == b"all" and not link.is_symlink()
    assert (tmp_path / "there.pt").read_bytes() == b"old"


@pytest.mark.parametrize("there", ["nothing", "folder", "file"])
def test_a_folder_takes_the_place_of_a_damaged_one(tmp_path: Path, there: str) -> None:
    final = tmp_path / "step-3.ckpt"
    if there == "folder":
        final.mkdir()
        (final / "half").touch()
    elif there == "file":
        final.touch()
    unfinished = Path(aside(str(final)))
    unfinished.mkdir()
    (unfinished / "all").touch()
    put_in_place(str(unfinished), str(final))
    assert [path.name for path in tmp_path.iterdir()] == ["step-3.ckpt"] and os.listdir(final) == ["all"]
