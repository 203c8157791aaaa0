"""What the journal tells of one attempt among several in a run directory."""

from __future__ import annotations

import pytest

from holdfast.autoresume.outcome import LONGEST, Account, Cause, account_of
from tests.journal.story import START, Story


def test_the_first_to_fail_and_who_took_part() -> None:
    story = (
        Story()
        .tell(0, "run_start")
        .cycle(1, 0)
        .cycle(1, 0, node="b")
        .tell(1.5, "rank_start", cycle=0, rank=0)
    )
    story.exit(5.0, 0, rank=1, signal="SIGKILL").exit(5.2, 0, rank=0, code=1)
    story.tell(6, "run_end", exit_code=137).tell(6, "run_end", exit_code=137, node="b")
    found = account_of(story.events)
    assert found.cause == Cause("killed by SIGKILL", "a", 1, "crash")
    assert found.nodes == ("a", "b")
    assert found.started


def test_a_fault_that_a_restart_has_answered_is_not_what_ended_the_attempt() -> None:
    story = Story().tell(0, "run_start").cycle(1, 0).exit(5.0, 0, rank=1, signal="SIGKILL")
    story.restart(5.5, to=1).cycle(7, 1)
    assert account_of(story.events).cause is None  # and then the launcher was killed, say


def test_another_attempt_in_the_same_run_directory_does_not_count() -> None:
    story = Story().tell(0, "run_start").cycle(1, 0).exit(5.0, 0, rank=1, signal="SIGKILL")
    story.tell(6, "run_end", exit_code=137).tell(20, "run_start").cycle(21, 0)
    story.tell(25, "preemption", signal="SIGTERM").tell(26, "run_end", exit_code=75)
    found = account_of(story.events, since=START + 10)
    assert found.cause is None
    assert found.preempted_by == "SIGTERM"
    assert account_of(story.events, since=START + 100) == Account()


def test_which_nodes_were_suspected() -> None:
    story = Story().tell(0, "run_start").cycle(1, 0).tell(8, "node_suspected", cycle=0, suspect="e")
    assert account_of(story.tell(9, "node_suspected", cycle=0, suspect="b").events).suspected == ("b", "e")


@pytest.mark.parametrize(("before", "only_same"), [(0, True), (1, False)])
def test_the_same_failure_at_the_end_of_an_attempt(before: int, only_same: bool) -> None:
    story = Story().tell(0, "run_start").cycle(1, 0)
    same = {"failure": "ValueError: bad batch after step 23", "same_failure_limit": 3}
    for number in range(before):
        story.tell(5 + number, "incident", cycle=number).cycle(6 + number, number + 1)
    for number in range(2):
        story.tell(8 + number, "incident", cycle=before + number, same_failures=number + 1, **same)
        story.cycle(8.5 + number, before + number + 1)
    found = account_of(story.events)
    assert (found.failure, found.same_failures, found.same_failure_limit) == (same["failure"], 2, 3)
    assert found.only_same is only_same


def test_how_far_it_came() -> None:
    story = Story().tell(0, "run_start").cycle(1, 0)
    # Ranks tell their first step when the monitor looks; the lowest is where the training began.
    story.tell(2, "first_step", cycle=0, rank=0, step=3).tell(2, "first_step", cycle=0, rank=1, step=1)
    story.tell(9, "verdict", cycle=0, rank=1, step=77, signal="SIGKILL").restart(10, to=1).cycle(11, 1)
    story.tell(12, "first_step", cycle=1, rank=0, step=51)
    found = account_of(story.events)
    assert (found.resumed_step, found.last_step) == (51, 77)


def test_counted_steps_do_not_say_how_far_it_came() -> None:
    """They begin at 1 in each process: a training that resumes further each time would seem to get nowhere."""
    story = Story().tell(0, "run_start").cycle(1, 0)
    story.tell(2, "first_step", cycle=0, rank=0, step=1, counted=True)
    story.tell(9, "verdict", cycle=0, rank=0, step=77, connected=False, signal="SIGKILL")
    found = account_of(story.events)
    assert (found.resumed_step, found.last_step) == (None, None)


def test_a_request_for_the_end_and_a_long_story_are_a_line() -> None:
    story = Story().tell(0, "run_start").cycle(1, 0)
    story.tell(
        3, "request", cycle=0, rank=0, action="shutdown_workload", description="loss\nis NaN" + "!" * 500
    )
    found = account_of(story.events)
    assert found.request.startswith("a rank asked to end the whole job: loss is NaN!")
    assert len(found.request) == LONGEST
