"""`holdfast stragglers` as a person uses it."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.straggler.readings.kept import KeptReport
from holdfast.straggler.readings.plot import heat_map
from tests.processes import Spawned, Spawner
from tests.straggler.readings.history import job

CLI = [sys.executable, "-m", "holdfast", "stragglers"]


needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib (extra `plot`)"
)


def ended(spawn: Spawner, *arguments: str | Path, **env: str) -> Spawned:
    process = spawn([*CLI, *arguments], env=env)
    process.wait()
    return process


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return job(tmp_path / "run", 64)


def test_the_last_report_and_who_was_named(spawn: Spawner, run_dir: Path) -> None:
    process = ended(spawn, run_dir)
    assert (process.returncode, process.err()) == (0, "")
    said = process.out().splitlines()
    assert said[0].startswith(f"{run_dir}: 12 straggler reports, ")
    assert said[1].startswith("Report 12 of 12, ")
    assert said[3].startswith("  rank 63 (node gpu-0007): GPU, 1.31 × slower since report 3: ")


def test_one_report_and_the_last_ones(spawn: Spawner, run_dir: Path) -> None:
    early = ended(spawn, run_dir, "--report", "3").out().splitlines()
    assert early[1].startswith("Report 3 of 12, ") and early[3] == "  no rank is named as slow"
    last = ended(spawn, run_dir, "--last", "2").out()
    assert "the last 2 of 12 straggler reports, " in last and "Named in 2 reports" in last


def test_json(spawn: Spawner, run_dir: Path) -> None:
    found = json.loads(ended(spawn, run_dir, "--json").out())
    json.dumps(found, allow_nan=False)
    assert [one["number"] for one in found] == list(range(1, 13))
    assert found[-1]["verdicts"][0]["rank"] == 63
    assert found[-1]["cycle"] == 1 and len(found[-1]["overall"]) == 64
    (third,) = json.loads(ended(spawn, run_dir, "--json", "--report", "3").out())
    assert third["number"] == 3
    assert [one["number"] for one in json.loads(ended(spawn, run_dir, "--json", "--last", "2").out())] == [
        11,
        12,
    ]


def test_the_newest_run_with_reports(spawn: Spawner, run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "holdfast"
    folder.mkdir(parents=True)
    run_dir.rename(folder / "with")
    (folder / "without").mkdir()
    (folder / "without" / "journal-a.jsonl").write_text(
        '{"t": 2000000000, "mono": 1, "node": "a", "kind": "run_start"}\n'
    )
    for process in (ended(spawn, folder), ended(spawn, XDG_STATE_HOME=str(folder.parent))):
        assert process.out().startswith(f"{folder}/with: 12 straggler reports, "), process.output()


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
        pytest.param(
            ["RUN", "--plot", "/nonexistent/x.png"],
            "--plot /nonexistent/x.png: No such file or directory",
            marks=needs_matplotlib,
        ),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    spawn: Spawner, run_dir: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "journal-a.jsonl").write_text("")
    places = {"RUN": str(run_dir), "EMPTY": str(tmp_path / "empty")}
    process = ended(spawn, *(places.get(one, one) for one in arguments), XDG_STATE_HOME=os.devnull)
    assert (process.returncode, process.out()) == (2, "")
    (line,) = process.err().splitlines()
    assert line.startswith("holdfast") and says in line


def test_a_terminal_gets_lines_of_its_width(run_dir: Path) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb", buffering=0) as screen:
        environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
        process = subprocess.Popen([*CLI, str(run_dir)], stdout=follower, stderr=follower, env=environment)
        os.close(follower)
        said = b""
        try:
            while chunk := screen.read(4096):
                said += chunk
        except OSError:
            pass  # how Linux ends a terminal whose other side is closed
        assert process.wait(30) == 0
    assert max(map(len, said.decode().splitlines())) <= 80
    assert b"rank 63 (node gpu-0007): GPU, 1.31" in said


@needs_matplotlib
@pytest.mark.parametrize("ranks", [1, 4, 600])
@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG\r\n"), ("SVG", b"<?xml")])
def test_a_picture(spawn: Spawner, tmp_path: Path, ranks: int, ending: str, begins: bytes) -> None:
    run = job(tmp_path / "run", ranks)
    picture = tmp_path / f"ranks.{ending}"
    process = ended(spawn, run, "--plot", picture)
    assert (process.returncode, process.err()) == (0, ""), process.output()
    assert process.out().endswith(f"\nPicture in {picture}\n")
    content = picture.read_bytes()
    assert content.startswith(begins) and len(content) < 1_000_000
    if ending == "SVG":
        said = content.decode()
        assert f"{ranks} rank" in said and "restart, cycle 1" in said and "time of day" in said
        assert f"rank {min(ranks - 1, 76)}, 1.31x" in said


@needs_matplotlib
def test_a_picture_of_one_report_without_scores(spawn: Spawner, tmp_path: Path) -> None:
    from tests.straggler.readings.history import line, report

    (tmp_path / "journal-a.jsonl").write_bytes(line(1, 0.0, report(4, gpu=False, sections=())))
    process = ended(spawn, tmp_path, "--plot", tmp_path / "x.png")
    assert (process.returncode, process.err()) == (0, ""), process.output()


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
    fields: dict[str, Any] = dict.fromkeys(
        ("holders", "kernels", "verdicts", "withheld", "columns", "rows"), ()
    )
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


@pytest.mark.parametrize(("ranks", "reports"), [(1, 1), (513, 481)])
def test_it_is_never_larger_than_a_picture(ranks: int, reports: int) -> None:
    scores: Scores = dict.fromkeys(range(ranks), 0.9)
    rows, columns = heat_map([told(60.0 * n, scores) for n in range(reports)])[0].shape
    assert 1 <= rows <= 512 and 1 <= columns <= 480
