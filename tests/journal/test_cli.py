"""`holdfast incidents` as a person uses it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.journal.event import encode
from tests.journal.story import Story
from tests.processes import Spawned, Spawner

CLI = [sys.executable, "-m", "holdfast"]


def write(story: Story, run_dir: Path) -> Path:
    run_dir.mkdir(parents=True, exist_ok=True)
    for node, events in story.told.items():
        lines = [encode(e.kind, e.fields, t=e.t, mono=e.mono, node=e.node) for e in events]
        (run_dir / f"journal-{node}.jsonl").write_bytes(b"".join(lines))
    return run_dir


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    story = Story().tell(0, "run_start").cycle(1, 0).exit(5, 0, rank=1, signal="SIGKILL").restart(5.5, to=1)
    story.cycle(6, 1).tell(7, "resume", cycle=1, rank=0)
    story.tell(
        50, "verdict", cycle=1, rank=0, pid=2000, waited=31.2, text="[bold] is no markup " + "x" * 200, signal="SIGKILL"
    )  # fmt: skip
    return write(story.restart(51, to=2, used=2).cycle(52, 2).tell(54, "resume", cycle=2, rank=0), tmp_path)


def ended(spawn: Spawner, *arguments: str, **env: str) -> Spawned:
    process = spawn([*CLI, *arguments], env=env)
    process.wait()
    return process


def test_one_line_for_each_incident(spawn: Spawner, run_dir: Path) -> None:
    process = ended(spawn, "incidents", str(run_dir))
    assert (process.returncode, process.err()) == (0, "")
    header, _, crash, hang, summary = process.out().splitlines()
    assert header.split()[:3] == ["#", "noticed", "what"]
    cells = [cell.strip() for cell in crash.split("   ") if cell.strip()]
    assert cells[2:] == [
        "crash",
        "rank 1 (node a, pid 1001), cycle 0",
        "killed by SIGKILL",
        "0.00 s",
        "1.10 s",
        "2.00 s",
        "restarted (1 of 3)",
    ]
    assert "[bold] is no markup " + "x" * 200 in hang
    assert summary == "2 incidents, 37.20 s without training"


def test_json(spawn: Spawner, run_dir: Path) -> None:
    process = ended(spawn, "incidents", str(run_dir), "--json")
    crash, hang = json.loads(process.out())
    assert (crash["number"], crash["kind"], crash["rank"], crash["followers"]) == (1, "crash", 1, [])
    assert (crash["restart_seconds"], crash["resume_seconds"], crash["lost_seconds"]) == (1.1, 2.0, 2.0)
    assert (hang["kind"], hang["unnoticed_seconds"], hang["lost_seconds"]) == ("hang", 31.2, 35.2)


def test_no_incidents(spawn: Spawner, tmp_path: Path) -> None:
    process = ended(spawn, "incidents", str(write(Story().cycle(1, 0), tmp_path)))
    assert (process.returncode, process.out()) == (0, "no incidents\n")


@pytest.fixture
def state(tmp_path: Path, run_dir: Path) -> Path:
    """A state folder with an old run of two incidents, a new one without any, and things that are no runs."""
    folder = tmp_path / "state" / "holdfast"
    old = folder / "z-old"
    old.mkdir(parents=True)
    (run_dir / "journal-a.jsonl").rename(old / "journal-a.jsonl")
    write(Story().tell(900, "run_start").cycle(901, 0), folder / "a-new")
    write(Story().tell(950, "run_start"), old / "also-77")
    (folder / "torn").mkdir()
    (folder / "torn" / "journal-x.jsonl").write_text("{")
    (folder / "no-run").mkdir()
    return folder


def test_the_runs_of_a_folder_newest_first(spawn: Spawner, state: Path) -> None:
    process = ended(spawn, "incidents", str(state))
    assert (process.returncode, process.err()) == (0, "")
    title, *lines = [line.split() for line in process.out().splitlines()]
    assert title == ["begun", "incidents", "run"]
    assert [line[-2:] for line in lines] == [
        ["0", f"{state}/z-old/also-77"],
        ["0", f"{state}/a-new"],
        ["2", f"{state}/z-old"],
        ["0", f"{state}/torn"],
    ]
    assert lines[-1][0] == "-"
    by_default = ended(spawn, "incidents", XDG_STATE_HOME=str(state.parent))
    assert by_default.out() == process.out()


def test_the_runs_of_a_folder_as_json(spawn: Spawner, state: Path) -> None:
    runs = json.loads(ended(spawn, "incidents", "--json", XDG_STATE_HOME=str(state.parent)).out())
    assert [run["incidents"] for run in runs] == [0, 0, 2, 0]
    assert runs[1] == {
        "path": f"{state}/a-new",
        "begun": runs[2]["begun"] + 900,
        "incidents": 0,
        "problem": "",
    }


def test_a_run_beside_another_is_named(spawn: Spawner, state: Path) -> None:
    said = ended(spawn, "incidents", str(state / "z-old")).out()
    assert said.endswith(f"another job ran here at the same time: holdfast incidents {state}/z-old/also-77\n")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_output_that_takes_nothing_is_one_line(spawn: Spawner, run_dir: Path, form: list[str]) -> None:
    command = [*CLI, "incidents", str(run_dir), *form]
    process = spawn(["bash", "-c", 'exec "$@" > /dev/full', "-", *command])
    assert process.wait() == 2
    assert process.err() == "holdfast: error: standard output: No space left on device; the result is lost\n"


def test_a_closed_output_is_one_line(spawn: Spawner, run_dir: Path) -> None:
    process = spawn(["bash", "-c", 'exec "$@" >&-', "-", *CLI, "incidents", str(run_dir)])
    assert process.wait() == 2
    assert process.err() == "holdfast: error: standard output is closed; the result is lost\n"


def test_a_terminal_gets_one_line_each_too(run_dir: Path) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [*CLI, "incidents", str(run_dir)],
            stdout=follower,
            stderr=follower,
            env={**os.environ, "COLUMNS": "120", "TERM": "dumb"},
        )
        os.close(follower)
        text = b""
        try:
            while chunk := screen.read(4096):
                text += chunk
        except OSError:
            pass  # how Linux ends a terminal whose other side is closed
        assert process.wait(30) == 0
    lines = text.decode().splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["incidents", "/nonexistent"], "/nonexistent: No such file or directory"),
        (["incidents", "/"], "/: no journal-<node>.jsonl in it"),
        (["incidents"], f"no run in {os.devnull}/holdfast or "),
        (["incident", "x"], "invalid choice: 'incident'"),
        (["incidents", "x", "--jsn"], "unrecognized arguments: --jsn"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(spawn: Spawner, arguments: list[str], says: str) -> None:
    process = ended(spawn, *arguments, XDG_STATE_HOME=os.devnull)
    assert (process.returncode, process.out()) == (2, "")
    (line,) = process.err().splitlines()
    assert line.startswith("holdfast")
    assert says in line


def test_version_and_help(spawn: Spawner) -> None:
    assert ended(spawn, "--version").out() == f"holdfast {__version__}\n"
    assert "incidents" in ended(spawn, "--help").out()


def test_a_reader_that_has_seen_enough_is_no_error(spawn: Spawner, run_dir: Path) -> None:
    process = spawn(["bash", "-c", 'set -o pipefail; "$@" | true', "-", *CLI, "incidents", str(run_dir)])
    assert (process.wait(), process.err()) == (0, "")
