"""Which incident of the journal a report belongs to."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.incidents.report.kept import reports
from holdfast.journal.incident_list import incidents
from tests.journal.story import START, Story


def keep(run_dir: Path, number: int, run_id: str, cycle: int, at: float) -> None:
    folder = run_dir / "incidents" / f"{number:04d}"
    folder.mkdir(parents=True)
    (folder / "incident").write_text(json.dumps({"run_id": run_id, "cycle": cycle, "at": START + at}))


def found(run_dir: Path, story: Story) -> dict[int, int]:
    listed = incidents(story.events)
    return {number: kept.number for number, kept in reports(str(run_dir), story.events, listed).items()}


def lives(first: str, second: str, *, ended: bool) -> Story:
    """Two lives of a job in one run directory, each with a crash in cycle 0."""
    story = Story().tell(0, "run_start", run_id=first).cycle(1, 0).exit(5, 0, rank=1, code=1)
    if ended:
        story.tell(6, "run_end", exit_code=1)
    return story.tell(100, "run_start", run_id=second).cycle(101, 0).exit(105, 0, rank=0, code=1)


def test_by_run_id_and_cycle(tmp_path: Path) -> None:
    keep(tmp_path, 1, "b", 0, 5.1)  # the clock of whoever wrote it may be anything
    keep(tmp_path, 2, "a", 0, 105.1)
    keep(tmp_path, 3, "a", 7, 5.0)
    for ended in (True, False):  # a launcher that was killed has not told that it ended
        assert found(tmp_path, lives("a", "b", ended=ended)) == {1: 2, 2: 1}


def test_a_run_id_that_is_used_again(tmp_path: Path) -> None:
    keep(tmp_path, 1, "none", 0, 5.1)
    keep(tmp_path, 2, "none", 0, 105.1)
    assert found(tmp_path, lives("none", "none", ended=True)) == {1: 1, 2: 2}


def test_a_preemption_in_the_same_cycle_has_none(tmp_path: Path) -> None:
    keep(tmp_path, 1, "a", 0, 5.1)
    story = (
        Story().tell(0, "run_start", run_id="a").cycle(1, 0).tell(5, "preemption", cycle=0, signal="SIGTERM")
    )
    assert found(tmp_path, story) == {}
