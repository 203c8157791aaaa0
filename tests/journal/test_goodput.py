"""`holdfast goodput`: each second of a job in one bucket."""

from __future__ import annotations

import json
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.main import main
from holdfast.fault_tolerance.processes import proc
from holdfast.journal.event import Event
from holdfast.journal.goodput import BUCKETS, KINDS, Goodput, goodput
from holdfast.journal.incidents import incidents
from holdfast.views.job import read_job
from tests.journal.story import START, Story, write


def account(story: Story) -> Goodput:
    return goodput(story.events, incidents(story.events))


def spent(found: Goodput) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in found.seconds.items() if round(seconds, 3)}


def trains(story: Story, at: float, cycle: int, step: int, node: str = "a") -> Story:
    return story.cycle(at, cycle, node).tell(at + 2, "first_step", node, cycle=cycle, rank=0, step=step)


def begun() -> Story:
    """A job that trains from second 10 on."""
    return trains(Story().tell(0, "run_start"), 8, 0, 1)


def progress(story: Story, at: float, cycle: int, last: int, /, **sections: float) -> Story:
    """What two ranks have done by then; seconds of sections are those of one rank."""
    both = {name: {"seconds": 2 * seconds, "count": 9} for name, seconds in sections.items()}
    fields = {"cycle": cycle, "reason": "cycle_end", "ranks": 2, "steps_least": last, "steps_most": last}
    return story.tell(at, "progress", **fields, sections=both)


def test_a_quiet_job() -> None:
    story = progress(trains(Story().tell(0, "run_start"), 5, 0, 1), 50, 0, 40, checkpointing=7)
    sections = {"checkpointing": 10, "validation": 2, "eval": 3, "data_loading": 20, "step": 60}
    found = account(progress(story, 107, 0, 100, **sections).tell(108, "run_end"))
    assert spent(found) == {"start-up": 7, "checkpointing": 10, "validation": 5, "data": 20, "training": 66}
    assert (found.wall, round(found.share, 3)) == (108, round(66 / 108, 3))
    assert found.failures == 0 and found.seconds_between_failures is None


def crash() -> Story:
    """100 steps in 100 s; the next cycle begins at step 76."""
    story = progress(begun(), 110.5, 0, 100)
    story.exit(110, 0, rank=1, signal="SIGKILL").restart(110.2, to=1)
    return progress(trains(story, 111, 1, 76), 213, 1, 175).tell(213, "run_end")


def test_a_crash_loses_the_steps_that_are_done_again() -> None:
    found = account(crash())
    assert spent(found) == {"start-up": 10, "training": 75 + 100, "lost": 25, "restart": 3}
    assert (found.lost_steps, found.failures, found.seconds_to_recover) == (25, 1, 3)
    assert found.by_kind == {"crash": 1} and found.by_node == {"a": 1}


def test_steps_that_are_lost_twice_count_once() -> None:
    """Steps 1 to 100, then 51 to 80, then from 21 on."""
    story = progress(begun(), 110, 0, 100)
    story.exit(110, 0, rank=1, signal="SIGKILL").restart(110, to=1)
    story = progress(trains(story, 110, 1, 51), 142, 1, 80)
    story.exit(142, 1, rank=1, signal="SIGKILL").restart(142, to=2)
    found = account(progress(trains(story, 142, 2, 21), 224, 2, 100).tell(224, "run_end"))
    assert found.lost_steps == 80 + 30
    assert spent(found) == {"start-up": 10, "training": 20 + 80, "lost": 80 + 30, "restart": 4}


def test_a_lost_node_is_undetected_from_its_last_sign_of_life_on() -> None:
    story = begun().tell(60, "node_lost", lost="b", waited=12.0).restart(60, to=1)
    found = account(trains(story, 61, 1, 1).tell(73, "run_end"))
    assert spent(found) == {"start-up": 10, "training": 38 + 10, "undetected": 12, "restart": 3}


def test_a_hang_in_a_section_is_not_time_of_that_section() -> None:
    """One of two ranks hangs for 30 s in data_loading, after 4 s of it; nothing is detected until then."""
    story = begun()
    hung = {"rank": 1, "pid": 1001, "waited": 30.0, "where": "step > data_loading", "signal": "SIGKILL"}
    story.tell(60, "verdict", cycle=0, **hung)
    story = progress(story, 60, 0, 20, data_loading=4 + 15).restart(60, to=1)
    found = account(trains(story, 61, 1, 21).tell(73, "run_end"))
    assert spent(found) == {"start-up": 10, "training": 16 + 10, "data": 4, "undetected": 30, "restart": 3}
    assert found.seconds_to_detect == 30


def test_a_preemption_is_no_failure_and_the_queue_is_waiting() -> None:
    story = begun().tell(30, "preemption", signal="SIGTERM")
    story.tell(34, "run_end").tell(54, "run_start")
    found = account(trains(story, 60, 0, 21).tell(72, "run_end"))
    assert spent(found) == {"start-up": 10 + 8, "training": 20 + 10, "stopping": 4, "waiting": 20}
    assert len(found.attempts) == 2 and found.failures == 0


def test_an_attempt_whose_end_is_not_told() -> None:
    story = begun().tell(40, "first_heartbeat", cycle=0, rank=1)
    found = account(trains(story.tell(90, "run_start"), 95, 0, 1).tell(99, "run_end"))
    assert spent(found) == {"start-up": 10 + 7, "training": 30 + 2, "unknown": 50}


def test_attempts_on_other_launchers_are_attempts_of_their_own() -> None:
    """Of two nodes one is lost; the job is requeued, and its launchers have other names."""
    story = Story().tell(0, "run_start", "a:1", run_id="7").tell(0, "run_start", "b:1", run_id="7")
    trains(story.cycle(1, 0, "b:1", first=2), 1, 0, 1, "a:1")
    story.tell(100, "node_lost", "a:1", lost="b:1", waited=0.0).tell(100, "stop", "a:1", cycle=0).tell(
        103, "run_end", "a:1", exit_code=143
    )
    story.tell(1103, "run_start", "a:2", run_id="8").cycle(1105, 0, "b:2", first=2)
    trains(story, 1105, 0, 1, "a:2").tell(1207, "run_end", "a:2").tell(1207, "run_end", "b:2")
    found = account(story)
    assert [round(each.ended - each.begun) for each in found.attempts] == [103, 104]
    assert spent(found) == {"start-up": 3 + 4, "training": 97 + 100, "stopping": 3, "unknown": 1000}


def test_launchers_without_a_cycle_have_no_attempt_of_their_own() -> None:
    """A spare that ends, and a launcher that waits for a place in the job, and whose end is not told."""
    story = begun().tell(0, "run_start", "spare").tell(20, "run_start", "b:2").tell(30, "run_end", "spare")
    found = account(progress(story, 100, 0, 90).tell(110, "run_end"))
    assert len(found.attempts) == 1 and spent(found) == {"start-up": 10, "training": 100}


def test_a_report_on_a_rank_at_its_end_is_no_failure() -> None:
    report = {"rank": 1, "cause": "shutdown", "sentence": "Rank 1 is at its exit.", "job_goes_on": True}
    found = account(begun().tell(80, "incident", cycle=0, **report).tell(110, "run_end"))
    assert spent(found) == {"start-up": 10, "training": 100} and found.failures == 0


def test_a_program_that_tells_nothing() -> None:
    found = account(Story().tell(0, "run_start").cycle(5, 0).tell(65, "run_end"))
    assert spent(found) == {"start-up": 5, "unknown": 60}


def test_counted_steps_say_nothing_of_what_was_lost() -> None:
    story = Story().tell(0, "run_start").cycle(8, 0)
    story.tell(10, "first_step", cycle=0, rank=0, step=1, counted=True)
    story.tell(20, "progress", cycle=0, ranks=2, steps_most=50, sections={}, counted=True)
    assert account(story.tell(20, "run_end")).lost_steps is None


def test_the_page_has_every_bucket() -> None:
    page = (Path(__file__).parents[2] / "docs" / "goodput.md").read_text()
    assert "".join(f"| {name} | {meaning} |\n" for name, meaning in BUCKETS.items()) in page


names = ["cycle", "step", "at", "rank", "waited", "steps_most", "ranks", "sections", "counted"]
values = st.none() | st.integers(-2, 9) | st.floats() | st.text(max_size=3)
values |= st.just({"eval": {"seconds": 1e9}})
fields = st.dictionaries(st.sampled_from(names), values)
kinds = st.sampled_from(sorted(KINDS | {"verdict", "rank_exit", "node_lost", "incident", "from_the_future"}))
times = st.floats(START, START + 1e4), st.floats(0, 1e4)
nodes = st.sampled_from("ab")
events = st.lists(st.builds(Event, kinds, *times, nodes, fields, nodes), max_size=40)


@given(events)
def test_buckets_add_up_whatever_the_journal_has(told: list[Event]) -> None:
    found = goodput(told, incidents(told))
    assert sum(found.seconds.values()) == pytest.approx(found.wall, abs=1e-3)
    assert set(found.seconds) == set(BUCKETS)
    assert all(one.ended <= other.begun for one, other in pairwise(found.attempts))
    for attempt in found.attempts:
        assert sum(attempt.seconds.values()) == pytest.approx(attempt.ended - attempt.begun, abs=1e-3)
    assert all(seconds >= -1e-6 for seconds in found.seconds.values())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = str(write(crash(), tmp_path / "runs" / "a"))
    assert main(["goodput", run_dir]) == 0
    first, _, training, lost, *_ = capsys.readouterr().out.splitlines()
    assert first == f"goodput 82.2% of 3 min 33 s: 1 attempt, 2 cycles, 1 failure, {run_dir}"
    assert training.split()[:3] == ["training", "2", "min"] and lost.split()[:2] == ["lost", "25.0"]
    assert main(["goodput", run_dir, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wall"] == pytest.approx(213) and found["seconds"]["lost"] == pytest.approx(25)
    write(Story().tell(0, "run_start"), tmp_path / "runs" / "b")
    assert main(["goodput", str(tmp_path / "runs")]) == 2
    assert "has 2 runs in it" in capsys.readouterr().err


HERE, GONE = socket.gethostname(), "the job ended without a record at 2027-01-15 08:00:10 UTC"


@pytest.mark.parametrize(
    ("node", "change", "end", "wall"),
    [
        (HERE, {}, "", 500),
        (f"{HERE}:7", {}, "", 500),
        (HERE, {"started": 1}, GONE, 10),
        (HERE, {"pid_namespace": "pid:[1]"}, "", 10),
        ("elsewhere", {}, "", 10),
    ],
    ids=["runs", "runs as one of several", "gone", "another container", "another machine"],
)
def test_whether_a_launcher_without_an_end_still_runs(
    tmp_path: Path, node: str, change: dict[str, object], end: str, wall: float
) -> None:
    story = Story().tell(0, "run_start", node, **{**proc.identity(), "age": 0.0, **change})
    found = read_job(str(write(trains(story, 8, 0, 1, node), tmp_path)), START + 500)
    assert found.ledger and (found.end, found.ledger.wall) == (end, wall)


def test_a_launcher_that_waits_after_a_killed_one_does_not_continue_its_attempt(tmp_path: Path) -> None:
    """The killed one was the last of its attempt; the new one waits for other nodes, and for imports."""
    story = trains(Story().tell(0, "run_start", f"{HERE}:1"), 8, 0, 1, f"{HERE}:1")
    story.tell(3600, "progress", f"{HERE}:1", cycle=0, reason="interval", ranks=2, sections={})
    story.tell(25_000, "run_start", f"{HERE}:2", **{**proc.identity(), "age": 0.0})
    found = read_job(str(write(story, tmp_path)), START + 25_100)
    assert found.ledger and [span.ended - span.begun for span in found.ledger.attempts] == [3600, 100]
    assert spent(found.ledger) == {"start-up": 10, "training": 3590, "unknown": 21_500}


def test_a_suspended_job_does_not_train() -> None:
    story = Story(b=0.0).tell(0, "run_start")
    trains(trains(story, 8, 0, 1), 8, 0, 1, "b").tell(8_010, "gap", seconds=7_600.0)
    story.tell(8_011, "gap", "b", seconds=7_600.0).tell(8_101, "run_end").tell(8_101, "run_end", "b")
    found = account(story)
    assert spent(found) == {"start-up": 10, "training": 8_091 - 7_601, "waiting": 7_601}


def test_a_preemption_in_progress_of_a_launcher_that_runs(tmp_path: Path) -> None:
    node = socket.gethostname()
    story = trains(Story().tell(0, "run_start", node, **proc.identity()), 8, 0, 1, node)
    write(story.tell(20, "preemption", node, signal="SIGTERM"), tmp_path)
    assert [each.outcome for each in read_job(str(tmp_path), START + 21).incidents] == ["not over yet"]


def test_a_job_that_goes_on_without_a_lost_node_has_its_own_end(tmp_path: Path) -> None:
    story = Story().tell(0, "run_start", "a:1").tell(0, "run_start", "b:1").cycle(1, 0, "b:1", first=2)
    story.cycle(1, 0, "a:1").tell(20, "node_lost", "a:1", lost="b:1", waited=3.0).restart(20, 1, "a:1")
    story.cycle(21, 1, "a:1").tell(60, "run_end", "a:1", exit_code=0)
    found = read_job(str(write(story, tmp_path)), START + 500)
    assert found.end == "the job ended with exit code 0"
    assert found.ledger and found.ledger.by_kind == {"node lost": 1}


def test_a_preempted_node_whose_place_another_takes_does_not_end_the_job(tmp_path: Path) -> None:
    story = Story()
    for node, first in ("a:1", 0), ("b:1", 2):
        story.tell(0, "run_start", node).cycle(1, 0, node, first=first)
    story.tell(20, "preemption", "b:1", signal="SIGTERM").tell(24, "run_end", "b:1", exit_code=75)
    story.restart(24, 1, "a:1").tell(24.5, "run_start", "c:1")
    for node, first in ("a:1", 0), ("c:1", 2):
        story.cycle(25, 1, node, first=first).tell(90, "run_end", node, exit_code=0)
    found = read_job(str(write(story, tmp_path)), START + 500)
    assert found.end == "the job ended with exit code 0"
    assert [each.outcome for each in found.incidents if each.kind == "preemption"] == ["restarted"]


def test_nodes_of_an_earlier_attempt_are_not_shown(tmp_path: Path) -> None:
    """Launchers of several nodes have other names each time."""
    story = Story()
    for life, at in enumerate((0, 500)):
        for name, first in ("n1", 0), ("n2", 2):
            node = f"{name}:{life}"
            story.tell(at, "run_start", node, run_id="7").cycle(at + 1, 0, node, first=first)
            story.tell(at + 60, "progress", node, cycle=0, reason="interval", ranks=2, sections={})
    found = read_job(str(write(story, tmp_path)), START + 600)
    assert [event.source for event in found.progress] == ["n1:1", "n2:1"]


def test_training_ends_with_the_program_of_the_last_rank() -> None:
    story = begun().tell(110, "stop", cycle=0, reason="all ranks succeeded")
    story.tell(111, "progress", cycle=0, reason="cycle_end", ranks=2, steps_most=9, sections={}, finished=6.0)
    found = account(story.tell(112, "run_end").tell(114, "launcher_exit"))
    assert spent(found) == {"start-up": 10, "training": 95, "stopping": 9}


def test_an_attempt_begins_with_the_process_of_its_launcher() -> None:
    story = trains(Story().tell(0, "run_start", age=0.0), 8, 0, 1).tell(30, "run_end")
    found = account(trains(story.tell(60, "run_start", age=5.0), 60, 0, 21).tell(72, "run_end"))
    assert spent(found) == {"start-up": 10 + 5 + 2, "training": 20 + 10, "waiting": 25}
