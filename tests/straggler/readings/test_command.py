"""`holdfast stragglers` as a person uses it: who is slow first, no line wider than the terminal."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from holdfast.cli import main
from holdfast.journal.event import decode
from holdfast.journal.reader import read_run
from holdfast.straggler.readings.kept import KeptReport, reports
from holdfast.straggler.readings.plot import heat_map
from holdfast.straggler.readings.text import overview
from tests.pipes import on_a_terminal
from tests.processes import Spawner
from tests.straggler.readings.history import job, line, report

CLI = [sys.executable, "-m", "holdfast", "stragglers"]


needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib (extra `plot`)"
)


class Ended(NamedTuple):
    returncode: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def stragglers(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`holdfast stragglers` in this process."""

    def run(*arguments: str | Path, **env: str) -> Ended:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        try:
            code = main(["stragglers", *map(str, arguments)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return job(tmp_path / "run", 64)


def test_the_last_report_and_who_was_named(stragglers: Command, run_dir: Path) -> None:
    process = stragglers(run_dir)
    assert (process.returncode, process.err) == (0, "")
    said = process.out.splitlines()
    assert said[0].startswith(f"{run_dir}: 12 straggler reports, ")
    assert said[1].startswith("Report 12 of 12, ")
    assert said[3].startswith("  rank 63 (node gpu-0007): GPU, 1.31 × slower since report 3: ")
    early = stragglers(run_dir, "--report", "3").out.splitlines()
    assert early[1].startswith("Report 3 of 12, ") and early[3] == "  no rank is named as slow"
    last = stragglers(run_dir, "--last", "2").out
    assert "the last 2 of 12 straggler reports, " in last and "Named in 2 reports" in last


def test_json(stragglers: Command, run_dir: Path) -> None:
    def found(*options: str) -> list[dict[str, Any]]:
        told = json.loads(stragglers(run_dir, "--json", *options).out)
        json.dumps(told, allow_nan=False)
        return list(told)

    every = found()
    assert [one["number"] for one in every] == list(range(1, 13))
    assert every[-1]["verdicts"][0]["rank"] == 63
    assert every[-1]["cycle"] == 1 and len(every[-1]["overall"]) == 64
    assert [one["number"] for one in found("--report", "3")] == [3]
    assert [one["number"] for one in found("--last", "2")] == [11, 12]


def test_the_newest_run_with_reports(stragglers: Command, run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "holdfast"
    folder.mkdir(parents=True)
    run_dir.rename(folder / "with")
    (folder / "without").mkdir()
    (folder / "without" / "journal-a.jsonl").write_text(
        '{"t": 2000000000, "mono": 1, "node": "a", "kind": "run_start"}\n'
    )
    for process in (stragglers(folder), stragglers(XDG_STATE_HOME=str(folder.parent))):
        assert process.out.startswith(f"{folder}/with: 12 straggler reports, "), process


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/nonexistent"], "/nonexistent: No such file or directory"),
        (["/"], "/: no journal-<node>.jsonl in it"),
        (["EMPTY"], "no straggler reports in this run. They are written by rank 0 under ft_launcher"),
        ([], f"no run in {os.devnull}/holdfast or "),
        (["RUN", "--report", "13"], "there is no report 13; the last is 12"),
        (["RUN", "--report", "0"], "argument --report: '0': give a whole number from 1"),
        (["RUN", "--last", "x"], "argument --last: 'x': give a whole number from 1"),
        (["RUN", "--last", "1", "--report", "1"], "not allowed with argument"),
        (["RUN", "--plot", "x.pdf"], "--plot x.pdf: the file must end in .png or .svg"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    stragglers: Command, run_dir: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "journal-a.jsonl").write_text("")
    places = {"RUN": str(run_dir), "EMPTY": str(tmp_path / "empty")}
    process = stragglers(*(places.get(one, one) for one in arguments), XDG_STATE_HOME=os.devnull)
    assert (process.returncode, process.out) == (2, "")
    (line,) = process.err.splitlines()
    assert line.startswith("holdfast") and says in line


def test_a_terminal_gets_lines_of_its_width(run_dir: Path) -> None:
    lines = on_a_terminal([*CLI, run_dir], 80)
    assert max(map(len, lines)) <= 80
    assert any("rank 63 (node gpu-0007): GPU, 1.31" in line for line in lines)


PLOTS = """
import sys
from holdfast.cli import main
codes = []
for run in sys.argv[1:]:
    folder, picture = run.split(":")
    try:
        codes.append(main(["stragglers", folder, "--plot", picture]))
    except SystemExit as stop:
        codes.append(stop.code)
print(codes)
"""


@needs_matplotlib
def test_pictures(spawn: Spawner, tmp_path: Path) -> None:
    """In a process of their own: matplotlib keeps its fonts open."""
    large, small = job(tmp_path / "large", 600), job(tmp_path / "small", 1)
    (tmp_path / "journal-a.jsonl").write_bytes(line(1, 0.0, report(4, gpu=False, sections=())))
    pictures = [tmp_path / name for name in ("large.png", "large.SVG", "small.SVG", "none.png")]
    runs = [*zip((large, large, small, tmp_path), pictures, strict=True), (large, "/nonexistent/x.png")]
    process = spawn.python(PLOTS, *(f"{folder}:{picture}" for folder, picture in runs))
    assert process.wait() == 0, process.output()
    assert process.out().endswith("[0, 0, 0, 0, 2]\n")
    (error,) = process.err().splitlines()
    assert error.startswith("holdfast") and "--plot /nonexistent/x.png: No such file or directory" in error
    *said, rest = process.out().split("\nPicture in ")
    assert len(said) == 4 and rest.startswith(f"{pictures[-1]}\n")
    assert "no rank is named" in said[-1] and "Scores" not in said[-1]
    for picture, begins in zip(pictures, (b"\x89PNG\r\n", b"<?xml", b"<?xml", b"\x89PNG\r\n"), strict=True):
        content = picture.read_bytes()
        assert content.startswith(begins) and len(content) < 1_000_000
    for picture, ranks in ((pictures[1], 600), (pictures[2], 1)):
        text = picture.read_text()
        assert f"{ranks} rank" in text and "restart, cycle 1" in text and "time of day" in text
        assert f"rank {min(ranks - 1, 76)}, 1.31x" in text


def test_without_matplotlib_it_is_said(spawn: Spawner, run_dir: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; sys.argv[0] = 'holdfast'; "
        "from holdfast.cli import console; sys.exit(console())"
    )
    process = spawn.python(code, "stragglers", str(run_dir), "--plot", str(tmp_path / "x.png"))
    assert (process.wait(), process.out()) == (2, "")
    (line,) = process.err().splitlines()
    assert line.startswith("holdfast: error: --plot needs matplotlib (")
    assert line.endswith("pip install 'holdfast[plot]'")


Scores = dict[int, float | None]


def told(t: float, overall: Scores) -> KeptReport:
    names = ("holders", "kernels", "verdicts", "withheld", "columns", "rows")
    fields: dict[str, Any] = dict.fromkeys(names, ())
    return KeptReport(number=0, t=t, run=1, cycle=0, elapsed_ms=None, nodes=1, overall=overall, **fields)


def test_a_column_for_each_report_and_a_row_for_each_rank() -> None:
    cells, *shape = heat_map([told(60.0, {0: 1.0, 1: 0.5}), told(120.0, {0: 0.9, 1: None, 5: 0.8})])
    assert shape == [[0, 1, 5], 1, 1]
    np.testing.assert_array_equal(cells, [[1.0, 0.9], [0.5, np.nan], [np.nan, 0.8]])


def test_a_cell_of_many_shows_the_worst() -> None:
    reports = [told(60.0 * n, dict.fromkeys(range(1000), 1.0)) for n in range(1, 101)]
    reports[42] = told(60.0 * 43, {rank: 0.3 if rank == 765 else 1.0 for rank in range(1000)})
    cells, _, per_row, per_column = heat_map(reports, rows=100, columns=25)
    assert (cells.shape, per_row, per_column) == ((100, 25), 10, 4)
    assert np.argwhere(cells == 0.3).tolist() == [[76, 10]]


# -- what a person reads: who is slow first, no line wider than the terminal


def one(*arguments: Any, **more: Any) -> KeptReport:
    event = decode(line(1, 0.0, report(*arguments, **more)))
    assert event is not None
    return reports([event])[0]


def text(shown: KeptReport, width: int | None = 80) -> str:
    return overview("runs/a", [shown], shown, 1, width)


@pytest.mark.parametrize("ranks", [1, 2, 8, 512])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, ranks: int) -> None:
    found = reports(read_run(str(job(tmp_path, ranks, reports=10, gpu=ranks > 8))))
    for width in (80, 120):
        lines = overview("runs/a", found, found[-1], 10, width).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= 70


def test_the_largest_job_fits_as_well() -> None:
    lines = text(one(16_384, {16_380: 1.3, **dict.fromkeys(range(96, 104), 1.2)})).splitlines()
    assert max(map(len, lines)) <= 80
    assert "> 16380  gpu-2047" in "\n".join(lines)


def test_long_names_and_many_sections_fit() -> None:
    sections = tuple(f"my.package.module.SomeClass{n}.forward" for n in range(20))
    nodes = {rank: f"node-with-a-long-name-{rank}.example" for rank in range(40)}
    shown = one(40, sections=sections, rank_to_node=nodes)
    lines = text(shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("more sections in a wider terminal or with --json" in one for one in lines)
    assert all(f"Class{n}.forward"[-11:] in text(shown, None) for n in range(20))


def test_the_verdicts_come_first() -> None:
    lines = text(one(512, {76: 1.31}), None).splitlines()
    assert lines[1].startswith("Report 1 of 1, ") and lines[1].endswith(": 512 ranks on 64 nodes, in 4.2 ms")
    begins = "  rank 76 (node gpu-0009): GPU, 1.31 × slower since report 3: kernels take 31 % longer "
    assert lines[3].startswith(begins)
    row = next(one for one in lines if one.startswith(">"))
    assert row.split()[:3] == [">", "76", "gpu-0009"]
    assert "  …  499 other ranks" in "\n".join(lines)


def test_why_nobody_is_named() -> None:
    shown = one(8, withheld=("the job is warming up: this report counts for nothing",))
    assert "  no rank is named as slow\n  not judged: the job is warming up" in text(shown, None)


def test_many_named_ranks_are_few_lines_in_a_terminal() -> None:
    shown = one(512, dict.fromkeys([*range(40, 48), 90], 1.3))
    assert "  and 4 more: rank 45–47, 90 (in full with --json)" in text(shown)
    assert text(shown, None).count(" × slower since ") == 9


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "GPU kernels on rank 0: cupti, 1,204,332 records, 0 dropped, 98 % of GPU time scored"),
        (
            {
                "kernel_source": "cuda_events",
                "kernel_source_reason": "CUPTI is in use",
                "kernel_note": "3 windows lost",
                "gpu_time_scored": math.nan,
            },
            "GPU kernels on rank 0: cuda_events, 1,204,332 records, 0 dropped; CUPTI is in use; 3 windows lost",
        ),
        ({"gpu": False}, "GPU kernels on rank 0: none; no GPU"),
        ({"gpu": False, "kernel_source_reason": ""}, "GPU kernels on rank 0: none"),
    ],
)
def test_what_the_source_saw(changes: dict[str, Any], says: str) -> None:
    assert says in text(one(8, **changes), None).splitlines()
    assert says.replace(" on rank 0", "") in text(one(1, **changes), None).splitlines()


def test_who_was_named_how_often(tmp_path: Path) -> None:
    found = reports(read_run(str(job(tmp_path, 512))))
    said = overview("runs/a", found, found[-1], 12).splitlines()
    start = said.index("Named in 12 reports")
    assert said[start + 1].startswith("  rank 76 (node gpu-0009): 8 times, since ")
    assert said[start + 1].endswith(" (report 5); GPU; up to 1.31x")
    assert said[start + 2].startswith("  rank 40–43 (node gpu-0005): 4 times, since ")
    until_ten = [replace(one, verdicts=()) if one.number > 10 else one for one in found]
    said_of_it = r" 6 times, from [\d:]+ \(report 5\) to [\d:]+ \(report 10\); GPU"
    assert re.search(said_of_it, overview("runs/a", until_ten, found[-1], 12))


def test_nothing_in_a_name_acts_on_a_terminal() -> None:
    shown = one(
        8,
        {3: 1.3},
        sections=("x\x1b[31mRED\x07",),
        rank_to_node=dict.fromkeys(range(8), "n\x1b[2J\n\u202e"),
        withheld=("because of \x9b1m",),
        kernel_note="\x1b]0;title",
    )
    for width in (None, 80):
        said = overview("runs/\x1b[1m", [shown, shown], shown, 2, width)
        assert all(text.isprintable() for text in said.splitlines())
        assert r"\x9b1m" in said and r"\x1b]0;title" in said and r"n\x1b[2J\n\u202e" in said
