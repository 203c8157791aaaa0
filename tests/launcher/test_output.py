"""The ranks' log files, which equal those of torch's own LogsSpecs, and the copies of their lines."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from holdfast.fault_tolerance.launcher.ranks import output
from holdfast.fault_tolerance.launcher.ranks.output import RankOutput


def given(folder: Path | str, **more: object) -> SimpleNamespace:
    options: dict[str, object] = {
        "log_dir": str(folder),
        "redirects": "0",
        "tee": "0",
        "local_ranks_filter": "",
        "logs_specs": None,
        "role": "trainer",
        "log_line_prefix_template": "",
        "duplicate_stdout_filters": [],
        "duplicate_stderr_filters": [],
    }
    return SimpleNamespace(**{**options, **more})


def environments(count: int, cycle: int = 0) -> dict[int, dict[str, str]]:
    shared = {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": str(cycle)}
    return {local: {**shared, "RANK": str(8 + local)} for local in range(count)}


STREAMS = ["0", "1", "2", "3", "0:3,1:1", "1:2"]


@pytest.mark.parametrize("where", ["logs", os.devnull])
def test_files_are_those_of_torchs_own_specs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, (redirects, tee, shown) in enumerate(itertools.product(STREAMS, STREAMS, ["", "1"])):
        ranks = {int(shown)} if shown else None
        place = where if where == os.devnull else f"{where}{number}"
        specs = DefaultLogsSpecs(place, Std.from_str(redirects), Std.from_str(tee), ranks)
        ours = RankOutput(given(place, redirects=redirects, tee=tee, local_ranks_filter=shown))
        mine, theirs = environments(2, number), environments(2, number)
        ours.prepare(mine)
        dest = dataclasses.asdict(specs.reify(theirs))
        if place == os.devnull:
            dest["filtered_stdout"] = dest["filtered_stderr"] = ""  # relative to nowhere, and never opened

        def masked(text: object, made: list[Path]) -> str:
            return str(text).replace(made[0].name, "RUN").replace(made[-1].name, "RUN") if made else str(text)

        made = sorted(Path(place).iterdir()) if place != os.devnull else []
        found = {name: value for name, value in dataclasses.asdict(ours.files).items() if name in dest}
        assert masked(found, made) == masked(dest, made), (redirects, tee, shown)
        assert masked(mine, made) == masked(theirs, made)
        if made:
            assert len(made) == 2 and all(each.name.startswith("run_") for each in made)
            trees = [[str(path.relative_to(each)) for path in sorted(each.rglob("*"))] for each in made]
            assert trees[0] == trees[1] and trees[0]


def tee(folder: Path, *chunks: bytes, **more: object) -> tuple[str, str]:
    """What is copied of a rank that writes these bytes, one after the other: to stdout, and to the filtered file."""
    copied = RankOutput(given(folder, tee="1", **more))
    ranks = environments(1)
    copied.prepare(ranks)
    with open(folder / "stdout", "w+") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        copied.copy(ranks)
        with open(copied.files.stdouts[0], "wb", buffering=0) as file:
            for chunk in chunks:
                file.write(chunk)
                time.sleep(0.11 if len(chunks) > 1 else 0)  # so that it is copied by itself
        copied.end()
        stream.seek(0)
        filtered = Path(copied.files.filtered_stdout)
        return stream.read(), filtered.read_text() if filtered.exists() else ""


def test_lines_are_copied_whole(tmp_path: Path) -> None:
    """Also those that end in a carriage return, that come in pieces, and the last without an end."""
    found, _ = tee(tmp_path, b"10 %\r20 %\r", "\nä".encode()[:2], "ä".encode()[1:] + b"b\xff\nno end")
    assert found == "[trainer0]:10 %\n[trainer0]:20 %\n[trainer0]:äb\ufffd\n[trainer0]:no end"


def test_prefix_and_filter_are_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"an apple\na pear\nan orange\n"
    monkeypatch.setenv(output.TEMPLATE, "${role_name} ${rank}/${local_rank} ${other}: ")
    found, filtered = tee(tmp_path, text, duplicate_stdout_filters=["apple", "range"])
    prefix = "trainer 8/0 ${other}: "
    assert found == f"{prefix}an apple\n{prefix}a pear\n{prefix}an orange\n"
    assert filtered == f"{prefix}an apple\n{prefix}an orange\n"
    found, _ = tee(tmp_path, b"x\n", log_line_prefix_template="[${rank}] ")
    assert found == "[8] x\n"
