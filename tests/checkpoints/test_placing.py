"""What a checkpoint that is written whole takes the place of, and what it does not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.checkpoints import whole_file
from holdfast.checkpoints.atomic import aside, put_in_place


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
