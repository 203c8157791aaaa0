"""What reading a run directory costs: the files that are opened, the steps that are run, the memory that is held."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.journal.event import encode
from holdfast.journal.incidents import incidents
from tests.journal.story import START, Story
from tests.journal.test_cli import write
from tests.processes import Spawner

OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, found: opened.append(str(found[0])) if event == "open" else None)
from holdfast.cli.main import main
code = main(sys.argv[2:])
print("\\n".join(path for path in opened if path.startswith(sys.argv[1])), file=sys.stderr)
sys.exit(code)
"""


def opened(spawn: Spawner, below: Path, *arguments: str | Path) -> list[str]:
    """The files below this folder that the command opened, in order."""
    process = spawn.python(OPENED, str(below), *map(str, arguments))
    assert process.wait() == 0, process.output()
    return [str(Path(path).relative_to(below)) for path in process.err().splitlines()]


def failing(cycles: int) -> Story:
    """One failure per cycle."""
    story = Story().tell(0, "run_start")
    for number in range(cycles):
        story.cycle(10.0 * number + 1, number).exit(10.0 * number + 5, number, rank=1, code=3)
        story.restart(10.0 * number + 6, to=number + 1)
    return story


def test_incident_list_opens_no_file_of_a_rank(spawn: Spawner, tmp_path: Path) -> None:
    write(failing(2), tmp_path)
    (tmp_path / "journal-a.rank-0.jsonl").write_bytes(
        encode("straggler_report", {"rows": ["x" * 90] * 1000}, t=START, mono=1.0, node="a")
    )
    assert opened(spawn, tmp_path, "incidents", tmp_path).count("journal-a.jsonl") >= 1
    assert "journal-a.rank-0.jsonl" not in opened(spawn, tmp_path, "incidents", tmp_path)


def steps(story: Story) -> int:
    """The lines of Python that reading these events takes."""
    events, count = story.events, 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        incidents(events)
    finally:
        sys.settrace(before)
    return count


def test_incident_list_of_four_times_the_cycles_takes_four_times_the_steps() -> None:
    assert steps(failing(240)) < 4.5 * steps(failing(60))


def test_incident_list_holds_no_event_that_it_does_not_use(tmp_path: Path) -> None:
    write(failing(3), tmp_path)
    line = encode("decision", {"actions": "y" * 4000}, t=START + 7, mono=107.0, node="a")
    with open(tmp_path / "journal-a.jsonl", "ab") as file:
        for _ in range(5000):
            file.write(line)
    from holdfast.cli.main import main

    tracemalloc.start()
    try:
        assert main(["incidents", str(tmp_path), "--json"]) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20, f"{peak >> 20} MiB for {5000 * len(line) >> 20} MiB of records"


def test_incident_list_with_a_lost_node_and_then_a_lost_host_has_both(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    story = Story().cycle(1, 0).tell(20, "node_lost", lost="b", waited=14.5).restart(20.1, to=1)
    story.tell(30, "job_lost", reason="no process listens at h:29500 any more", host="h:29500")
    write(story.tell(31, "run_end", exit_code=1), tmp_path)
    from holdfast.cli.main import main

    assert main(["incidents", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next((each["kind"], each["node"]) for each in found) == ("node lost", "b")
    assert len(found) == 2
