"""`holdfast nodes`: machines over the journals of many jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.nodes import Machine, count
from tests.journal.story import Story, write

CRASH = {
    "rank": 2,
    "culprit_node": "gpu-2:71",
    "cause": "signal",
    "confidence": "high",
    "accuses": ["gpu-2:71"],
    "sentence": "Rank 2 crashed.",
}


def story() -> Story:
    found = (
        Story()
        .tell(0, "run_start", "gpu-1:70")
        .tell(0, "run_start", "gpu-2:71")
        .tell(0, "run_start", "gpu-3:72")
    )
    found.cycle(1, 0, "gpu-1:70").cycle(1, 0, "gpu-2:71", first=2)
    found.tell(9, "incident", "gpu-1:70", cycle=0, **CRASH).cycle(10, 1, "gpu-1:70").cycle(
        10, 1, "gpu-2:71", first=2
    )
    found.tell(20, "incident", "gpu-1:70", cycle=1, **CRASH)
    suspect = {"cycle": 1, "suspect": "gpu-2:71"}
    found.tell(20.5, "node_suspected", "gpu-1:70", **suspect, facts="node gpu-2:71 crashed twice")
    found.tell(21, "node_replaced", "gpu-1:70", **suspect, instead="gpu-3:72")
    return found.cycle(22, 2, "gpu-1:70").cycle(22, 2, "gpu-3:72", first=2)


def machines(*stories: Story) -> dict[str, Machine]:
    found: dict[str, Machine] = {}
    for each in stories:
        count(found, each.events)
    return found


def test_what_a_machine_did_in_one_job() -> None:
    found = machines(story().tell(81, "run_end", "gpu-2:71", exit_code=0))
    assert set(found) == {"gpu-1", "gpu-2", "gpu-3"}
    assert found["gpu-1"] == Machine("gpu-1", runs=1) and found["gpu-3"] == Machine("gpu-3", runs=1)
    assert found["gpu-2"] == Machine("gpu-2", 1, 2, 1, 60.0, "node gpu-2:71 crashed twice")


def test_a_machine_is_one_over_many_jobs() -> None:
    found = machines(story(), story().cycle(51, 3, "gpu-2:71").tell(60, "run_end", "gpu-2:71", exit_code=0))
    assert (found["gpu-2"].runs, found["gpu-2"].failures, found["gpu-2"].suspected) == (2, 4, 2)
    assert found["gpu-2"].idle_seconds == pytest.approx(1.1 + 30.0, abs=0.2), (
        "until the job's last event, until it trained"
    )


@pytest.mark.parametrize("change", [{"accuses": []}, {"accuses": ["a", "b"]}, {"job_goes_on": True}])
def test_what_counts_for_no_machine(change: dict[str, object]) -> None:
    found = machines(Story().cycle(1, 0).tell(9, "incident", cycle=0, **{**CRASH, **change}))
    assert found == {"a": Machine("a", runs=1)}


def test_a_report_that_was_made_again_counts_once() -> None:
    story = Story().cycle(1, 0).tell(9, "incident", cycle=0, **CRASH).tell(10, "incident", cycle=0, **CRASH)
    assert machines(story)["gpu-2"].failures == 1


def test_a_lost_machine() -> None:
    found = machines(Story().cycle(1, 0).tell(9, "node_lost", lost="gpu-9:3", waited=10.0))
    assert found["gpu-9"].failures == 1 and found["gpu-9"].last == "no sign of it any more"


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
