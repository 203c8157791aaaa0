"""`holdfast incidents` and `holdfast nodes` as a person uses them."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.cli.main import main
from holdfast.cli.nodes import Machine, count
from holdfast.fault_tolerance.processes import proc
from holdfast.incidents.report import store
from holdfast.journal.event import encode
from holdfast.views.job import read_job
from tests.incidents.cases_for_reports import FIXTURES, evidence, judged
from tests.journal.story import START, Story, write
from tests.pipes import on_a_terminal
from tests.processes import Spawner

CLI = [sys.executable, "-m", "holdfast"]
Says = Callable[..., str]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    story = Story().tell(0, "run_start").cycle(1, 0).exit(5, 0, rank=1, signal="SIGKILL").restart(5.5, to=1)
    story.cycle(6, 1).tell(7, "resume", cycle=1, rank=0)
    story.tell(
        50, "verdict", cycle=1, rank=0, pid=2000, waited=31.2, text="[bold] is no markup " + "x" * 200, signal="SIGKILL"
    )  # fmt: skip
    return write(story.restart(51, to=2, used=2).cycle(52, 2).tell(54, "resume", cycle=2, rank=0), tmp_path)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Says:
    """What `holdfast incidents` prints when it succeeds."""

    def run(*arguments: object) -> str:
        assert main(["incidents", *map(str, arguments)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Says:
    """The one line of a command that fails."""

    def run(*words: object) -> str:
        try:
            code: object = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("holdfast")
        return line

    return run


def test_one_line_for_each_incident(shown: Says, run_dir: Path) -> None:
    header, _, crash, hang, summary = shown(run_dir).splitlines()
    assert header.split()[:3] == ["#", "noticed", "what"]
    cells = [cell.strip() for cell in crash.split("   ") if cell.strip()]
    who, times = "rank 1 (node a, pid 1001), cycle 0", ["0.00 s", "1.10 s", "2.00 s"]
    assert cells[2:] == ["crash", who, "killed by SIGKILL", *times, "restarted (1 of 3)"]
    assert "[bold] is no markup " + "x" * 200 in hang
    assert summary == "2 incidents, 37.20 s without training"
    first, second = json.loads(shown(run_dir, "--json"))
    assert (first["number"], first["kind"], first["rank"], first["followers"]) == (1, "crash", 1, [])
    assert (first["restart_seconds"], first["resume_seconds"], first["lost_seconds"]) == (1.1, 2.0, 2.0)
    assert (second["kind"], second["unnoticed_seconds"], second["lost_seconds"]) == ("hang", 31.2, 35.2)
    assert (first["report"], second["report"]) == (None, None)


def test_a_launcher_that_ended_without_a_record_is_in_the_list(shown: Says, tmp_path: Path) -> None:
    """With the time of its last event, of whatever kind and in whatever file."""
    node = socket.gethostname()
    story = Story().tell(0, "run_start", node, **{**proc.identity(), "started": 1}).cycle(1, 0, node)
    write(story.tell(20, "monitor_replaced", node), tmp_path)
    line = {"t": START + 25, "mono": 25.0, "node": node, "cycle": 0, "kind": "progress"}
    (tmp_path / f"newest-{node}.7.jsonl").write_text(json.dumps(line, separators=(",", ":")) + "\n")
    end = "the job ended without a record at 2027-01-15 08:00:25 UTC"
    assert shown(tmp_path) == f"no incidents\n{end}\n"
    assert read_job(str(tmp_path), START + 500).end == end
    (row,) = json.loads(shown(tmp_path, "--json"))
    assert (row["number"], row["kind"], row["node"], row["what"]) == (None, "launcher lost", node, end)
    assert (row["t"], row["cycle"], row["report"]) == (START + 25, 0, None)


@pytest.fixture
def reported(run_dir: Path) -> Path:
    """The run directory with reports of both incidents; the second is as a killed launcher left it."""
    crash = store.allocate_incident_dir(str(run_dir), "run-1", 0)
    store.write_report(crash, *judged("exception"))
    hang = store.allocate_incident_dir(str(run_dir), "run-1", 1)
    store.write_fragment(hang, evidence("dead_storage").nodes[0])
    event = encode("incident", {"cycle": 0, "rank": 1, "report": crash}, t=START + 5.2, mono=105.2, node="a")
    with (run_dir / "journal-a.jsonl").open("ab") as file:
        file.write(event)
    return run_dir


def test_a_report(shown: Says, reported: Path, tmp_path: Path) -> None:
    text = shown(reported, 1)
    assert text == (reported / "incidents" / "0001" / "report.txt").read_text()
    assert text.startswith("EXCEPTION: rank 1 (node gpu-12), at 07:59:59 UTC: raised ValueError")
    assert shown(reported / "incidents" / "0001") == text
    record = json.loads(shown(reported, 1, "--json"))
    assert (record["schema"], record["number"], record["verdict"]["kind"]) == (2, 1, "exception")
    file = tmp_path / "page.html"
    assert shown(reported, 1, "--html", file) == f"page of incident 0001 in {file}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert shown(reported, 1, "--html", "-") == file.read_text()
    assert "<h1>EXCEPTION: rank 1 (node gpu-12), at" in file.read_text()
    rows = json.loads(shown(reported, "--json"))
    assert [row["report"] for row in rows] == [f"{reported}/incidents/0001", None]
    # One that no launcher has finished is made of what the nodes sent.
    assert shown(reported / "incidents" / "0002").startswith("HANG: rank 5 (node gpu-12), since ")
    assert not (reported / "incidents" / "0002" / "report.txt").exists()


def test_rejudge_shows_the_verdict_then_and_now(shown: Says, reported: Path) -> None:
    old = (FIXTURES / "old_rules.json").read_text()
    path = reported / "incidents" / "0001"
    (path / "incident.json").write_text(old)
    text = shown(reported, 1, "--rejudge")
    first, then, now = (line for line in text.splitlines() if not line.startswith("    "))
    assert "culprit rank 0 (node gpu-12) -> rank 2 (node gpu-12)" in first
    assert then.startswith("  Then (user_code, confidence low)") and now.startswith("  Now (user_code, ")
    found = json.loads(shown(path, "--rejudge", "--json"))
    ranks = [found[when]["verdict"]["rank"] for when in ("then", "now")]
    assert (found["changed"], ranks) == (True, [0, 2])
    assert (path / "incident.json").read_text() == old, "nothing is written"


def test_without_a_report_the_journal_has_the_facts(shown: Says, refused: Says, tmp_path: Path) -> None:
    """Its launcher did not survive it; the monitor's verdict is shown."""
    story = Story().tell(0, "run_start").cycle(1, 0)
    facts = {"cause": "lock", "culprit": 1, "confidence": "medium", "sentence": "Rank 1 waits for a lock."}
    facts |= {"rank": 0, "pid": 1000, "waited": 31.2, "text": "no heartbeat", "signal": "SIGKILL"}
    run_dir = write(story.tell(50, "verdict", cycle=0, **facts), tmp_path)
    first, *_, hang, _, verdict = shown(run_dir, 1).splitlines()
    assert first == "incident 1 has no report; from the journal:"
    assert "rank 1 (node a, pid 1001), cycle 0" in hang
    assert verdict == "verdict: Rank 1 waits for a lock. (confidence medium)"
    for option in ("--json", "--rejudge"):
        assert "incident 1 has no report" in refused("incidents", run_dir, 1, option)


def test_an_incident_that_cannot_be_shown_is_one_line(refused: Says, reported: Path, state: Path) -> None:
    page = reported / "no" / "x.html"
    (reported / "incidents" / "0001" / "incident.json").write_text('{"schema": 9}')
    (reported / "journal-a.jsonl").symlink_to(state / "z-old" / "journal-a.jsonl")
    for words, says in [
        ([state / "z-old", 3], "there is no incident 3; the last is 2."),
        ([state / "a-new", 1], "there is no incident 1; it has none."),
        ([state, 1], "Name one: holdfast incidents"),
        ([reported, 1, "--html", page], f"error: --html {page}: there is no folder {reported}/no"),
        ([reported, 1, "--json"], "its schema is 9; this version of Holdfast reads 1 and 2"),
    ]:
        assert says in refused("incidents", *words)


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


def test_the_runs_of_a_folder_newest_first(shown: Says, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    title, *lines = [line.split() for line in shown(state).splitlines()]
    assert title == ["begun", "incidents", "run"]
    found = {"z-old/also-77": "0", "a-new": "0", "z-old": "2", "torn": "0"}
    assert [line[-2:] for line in lines] == [[count, f"{state}/{name}"] for name, count in found.items()]
    assert lines[-1][0] == "-"
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parent))
    by_default = json.loads(shown("--json"))
    assert [run["incidents"] for run in by_default] == [0, 0, 2, 0]
    begun = by_default[2]["begun"] + 900
    assert by_default[1] == {"path": f"{state}/a-new", "begun": begun, "incidents": 0, "problem": ""}
    beside = f"another job ran here at the same time: holdfast incidents {state}/z-old/also-77\n"
    assert shown(state / "z-old").endswith(beside)


@pytest.mark.parametrize(
    ("output", "code", "error"),
    [
        ("> /dev/full", 2, "holdfast: error: standard output: No space left on device; the result is lost\n"),
        (">&-", 2, "holdfast: error: standard output is closed; the result is lost\n"),
        ("| true", 0, ""),  # a reader that has seen enough
    ],
)
def test_an_output_that_takes_nothing_is_one_line(
    spawn: Spawner, run_dir: Path, output: str, code: int, error: str
) -> None:
    process = spawn(["bash", "-c", f'set -o pipefail; "$@" {output}', "-", *CLI, "incidents", str(run_dir)])
    assert (process.wait(), process.err()) == (code, error)


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_a_narrow_terminal_goes_without_columns_but_not_without_who(run_dir: Path, columns: int) -> None:
    header, _, crash, hang, *_ = on_a_terminal([*CLI, "incidents", run_dir], columns)
    assert max(map(len, (header, crash, hang))) <= columns
    assert header.split()[0] == "#" and "what" in header.split() and "who" in header.split()
    assert crash.split()[0] == "1" and "crash" in crash and "rank 1 (" in crash
    assert hang.split()[0] == "2" and "hang" in hang and "rank 0 (" in hang
    assert ("cycle 1" in hang) == ("reason" in header) == (columns >= 80)
    assert ("restarted (1 of 3)" in crash) == (columns >= 140)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["incidents", "/nonexistent"], "/nonexistent: No such file or directory"),
        (["incidents", "/dev/null"], "/dev/null: Not a directory"),
        (["incidents", "/"], "/: no journal-<node>.jsonl in it"),
        (["incidents"], f"no run in {os.devnull}/holdfast or "),
        (["incident", "x"], "invalid choice: 'incident'"),
        (["incidents", ".", "0"], "'0': give a whole number from 1"),
        (["incidents", ".", "one"], "'one': give a whole number from 1"),
        (["incidents", "/", "1"], "/: no journal-<node>.jsonl in it"),
        (["incidents", "/", "--rejudge"], "--rejudge is for one incident"),
        (["incidents", ".", "--html", "x.html"], "--html is for one incident"),
        (["incidents", ".", "1", "--html", "x", "--json"], "use either --html or --json"),
        (["incidents", "x", "--jso"], "unrecognized arguments: --jso"),  # no abbreviations
        (["autoresume", "--max-failure", "2", "--", "x"], "unrecognized arguments: --max-failure"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    refused: Says, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    assert says in refused(*arguments)


def test_version_and_output_that_cannot_show_every_character(spawn: Spawner, run_dir: Path) -> None:
    process = spawn([*CLI, "--version"])
    assert (process.wait(), process.out()) == (0, f"holdfast {__version__}\n")
    for command in ("incidents", "goodput"):
        process = spawn([*CLI, command, run_dir], env={"PYTHONIOENCODING": "ascii"})
        assert (process.wait(), process.err()) == (0, "") and process.out().isascii()


# -- `holdfast nodes`: machines over the journals of many jobs


CRASH = {"rank": 2, "culprit_node": "gpu-2:71", "cause": "signal", "confidence": "high"}
CRASH |= {"accuses": ["gpu-2:71"], "sentence": "Rank 2 crashed."}


def story() -> Story:
    found = Story()
    for node in ("gpu-1:70", "gpu-2:71", "gpu-3:72"):
        found.tell(0, "run_start", node)
    for cycle, at in enumerate((1, 10)):
        found.cycle(at, cycle, "gpu-1:70").cycle(at, cycle, "gpu-2:71", first=2)
        for again in range(2):  # a report that is made again counts once
            found.tell(9 + 11 * cycle + again, "incident", "gpu-1:70", cycle=cycle, **CRASH)
    suspect = {"cycle": 1, "suspect": "gpu-2:71"}
    found.tell(20.5, "node_suspected", "gpu-1:70", **suspect, facts="node gpu-2:71 crashed twice")
    found.tell(21, "node_replaced", "gpu-1:70", **suspect, instead="gpu-3:72")
    return found.cycle(22, 2, "gpu-1:70").cycle(22, 2, "gpu-3:72", first=2)


def machines(*stories: Story) -> dict[str, Machine]:
    found: dict[str, Machine] = {}
    for each in stories:
        count(found, each.events)
    return found


def test_what_machines_did_in_one_job() -> None:
    told = story().tell(80, "node_lost", "gpu-1:70", lost="gpu-9:3", waited=10.0)
    assert machines(told.tell(81, "run_end", "gpu-2:71", exit_code=0)) == {
        "gpu-1": Machine("gpu-1", runs=1),
        "gpu-2": Machine("gpu-2", 1, 2, 1, 60.0, "node gpu-2:71 crashed twice"),
        "gpu-3": Machine("gpu-3", runs=1),
        "gpu-9": Machine("gpu-9", failures=1, last="no sign of it any more"),
    }


def test_a_machine_is_one_over_many_jobs() -> None:
    """It is idle until the job's last event, or until it trains."""
    found = machines(story(), story().cycle(51, 3, "gpu-2:71").tell(60, "run_end", "gpu-2:71", exit_code=0))
    assert (found["gpu-2"].runs, found["gpu-2"].failures, found["gpu-2"].suspected) == (2, 4, 2)
    assert found["gpu-2"].idle_seconds == pytest.approx(1.1 + 30.0, abs=0.2)


@pytest.mark.parametrize("change", [{"accuses": []}, {"accuses": ["a", "b"]}, {"job_goes_on": True}])
def test_what_counts_for_no_machine(change: dict[str, object]) -> None:
    found = machines(Story().cycle(1, 0).tell(9, "incident", cycle=0, **{**CRASH, **change}))
    assert found == {"a": Machine("a", runs=1)}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(story(), tmp_path / "jobs" / "1")
    write(Story().tell(0, "run_start", "gpu-2:9").cycle(1, 0, "gpu-2:9"), tmp_path / "jobs" / "2")
    assert main(["nodes", str(tmp_path / "jobs")]) == 0
    head, worst, *others = capsys.readouterr().out.splitlines()
    assert head.split() == ["node", "jobs", "failures", "suspected", "idle", "last"]
    assert worst.split()[:4] == ["gpu-2", "2", "2", "1"] and len(others) == 2
    assert main(["nodes", "--json", str(first), str(first)]) == 0
    assert [row["runs"] for row in json.loads(capsys.readouterr().out)] == [1, 1, 1], "each journal once"
    assert main(["nodes", str(tmp_path)]) == 2
    assert "no run with a journal" in capsys.readouterr().err
