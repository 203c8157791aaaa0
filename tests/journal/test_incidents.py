"""What went wrong, who, and how long: from the events of a journal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.journal.event import Event
from holdfast.journal.incidents import Incident, incidents
from tests.journal.story import START, Story, pid


def only(story: Story) -> Incident:
    (incident,) = incidents(story.events)
    return incident


def test_a_quiet_run_has_none() -> None:
    story = Story().tell(0, "run_start").cycle(1, 0)
    story.exit(9, 0, rank=0, code=0).exit(9, 0, rank=1, code=0).tell(10, "run_end", exit_code=0)
    assert incidents(story.events) == []
    assert incidents([]) == []


def test_a_crash_and_who_followed() -> None:
    story = Story().tell(0, "run_start").cycle(1, 0)
    story.exit(5.0, 0, rank=1, signal="SIGKILL").exit(5.2, 0, rank=0, code=1)
    story.restart(5.5, to=1).exit(6, 0, rank=0, signal="SIGTERM").cycle(7, 1).tell(
        9, "resume", cycle=1, rank=0
    )
    incident = only(story)
    assert (incident.number, incident.kind, incident.cycle, incident.node) == (1, "crash", 0, "a")
    assert (incident.rank, incident.pid) == (1, pid(0, 1))
    assert incident.what == "killed by SIGKILL"
    assert incident.t == START + 5
    assert (incident.unnoticed_seconds, incident.restart_seconds, incident.resume_seconds) == (0.0, 2.1, 4.0)
    assert incident.lost_seconds == 4.0
    assert incident.outcome == "restarted (1 of 3)"
    assert incident.followers == (0,)


def hang(story: Story, at: float = 40.0, rank: int = 0) -> Story:
    return story.tell(
        at, "verdict", cycle=0, rank=rank, pid=pid(0, rank), waited=31.2, limit=30.0, signal="SIGKILL",
        text="Did not get subsequent heartbeat. Waited 31.20 seconds.", where="data_loading", step=4181,
    )  # fmt: skip


def test_a_hang_lasts_from_the_last_sign_of_life() -> None:
    story = hang(Story().cycle(1, 0)).exit(40.1, 0, rank=0, signal="SIGKILL").restart(40.2, to=1)
    story.cycle(41, 1).tell(42, "first_step", cycle=1, step=4150)
    incident = only(story)
    assert (incident.kind, incident.rank) == ("hang", 0)
    assert incident.what == (
        "Did not get subsequent heartbeat. Waited 31.20 seconds. in data_loading, step 4181"
    )
    assert (incident.unnoticed_seconds, incident.resume_seconds) == (31.2, 2.0)
    assert incident.lost_seconds == pytest.approx(33.2)
    assert incident.followers == ()


def test_an_exit_with_its_exception() -> None:
    error = {"type": "ValueError", "message": "bad\nbatch", "traceback": "…"}
    story = Story().cycle(1, 0)
    story.tell(5, "rank_exit", cycle=0, rank=1, pid=7, exitcode=3, meaning="exit code 3", error=error)
    story.tell(5.1, "stop", cycle=0).tell(6, "run_end", exit_code=3)
    incident = only(story)
    assert (incident.kind, incident.what) == ("exit", "ValueError: bad batch (exit code 3)")
    assert incident.outcome == "the job ended with exit code 3"
    assert (incident.restart_seconds, incident.lost_seconds) == (None, None)


def test_an_exception_counts_from_when_it_was_raised() -> None:
    """Rank 1 was slow to end, so rank 0, which only followed, was seen first."""
    story = Story().cycle(1, 0).exit(5.0, 0, rank=0, code=1)
    error = {"type": "ValueError", "message": "bad", "at": 100.0 + 4.2}
    story.tell(5.4, "rank_exit", cycle=0, rank=1, pid=7, exitcode=1, meaning="exit code 1", error=error)
    assert only(story).rank == 1


def judged(story: Story, at: float = 5.3, /, **fields: Any) -> Story:
    """The launcher's verdict on cycle 0 after the evidence of all nodes."""
    usual = {
        "cause": "exception",
        "confidence": "high",
        "culprit_node": "a",
        "sentence": "Rank 1 raised ValueError.",
    }
    return story.tell(at, "incident", cycle=0, **{**usual, **fields})


@pytest.mark.parametrize("confidence", ["high", "low"])
def test_list_with_an_incident_event_names_the_rank_of_its_report(confidence: str) -> None:
    """Whatever the order of the ends tells, and however sure the report is: the two cannot disagree."""
    story = Story().cycle(1, 0).exit(5.0, 0, rank=0, code=1).exit(5.1, 0, rank=1, code=3)
    incident = only(judged(story, rank=1, confidence=confidence))
    assert (incident.kind, incident.rank, incident.pid, incident.what) == (
        "exit",
        1,
        pid(0, 1),
        "exit code 3",
    )
    assert incident.followers == (0,)
    assert incident.verdict == f"Rank 1 raised ValueError. (confidence {confidence})"


def test_list_with_two_incident_events_has_the_last() -> None:
    """Its report has replaced the one before it."""
    story = judged(judged(Story().cycle(1, 0).exit(5.0, 0, rank=0, code=1), rank=0), 6.0, rank=1)
    assert only(story).rank == 1


def test_list_with_a_hanging_culprit_and_a_failed_victim_has_a_hang() -> None:
    story = Story().cycle(1, 0).exit(5.0, 0, rank=0, code=1)
    incident = only(judged(story, rank=1, cause="user_code", sentence="Rank 1 sleeps in train.py:4."))
    assert (incident.kind, incident.rank, incident.what) == ("hang", 1, "Rank 1 sleeps in train.py:4.")
    assert incident.followers == (0,)


def test_list_with_an_incident_of_a_lost_node_has_the_node() -> None:
    story = Story().cycle(1, 0).exit(5.0, 0, rank=0, code=1)
    incident = only(judged(story, rank=None, cause="node_lost", culprit_node="b", sentence="Node b is lost."))
    assert (incident.kind, incident.node, incident.rank, incident.followers) == ("node lost", "b", None, (0,))
    story.tell(20, "node_lost", lost="b", waited=14.5)
    incident = only(story)
    assert (incident.kind, incident.node, incident.unnoticed_seconds) == ("node lost", "b", 14.5)


@pytest.mark.parametrize("cause", ["mismatched_collective", "unknown", "slow", "elsewhere"])
def test_list_with_a_report_that_names_no_rank_names_none(cause: str) -> None:
    story = Story().cycle(1, 0).exit(5.0, 0, rank=1, code=1)
    incident = only(judged(story, rank=None, cause=cause, culprit_node="", sentence="The ranks wait."))
    assert (incident.kind, incident.rank, incident.pid, incident.what) == (
        "exit",
        None,
        None,
        "The ranks wait.",
    )
    assert incident.followers == (1,)


def test_list_with_an_incident_event_has_its_followers() -> None:
    """Those that waited are followers too, and a failure of its own is none."""
    story = Story().cycle(1, 0, ranks=4).exit(5.0, 0, rank=0, code=1).exit(5.1, 0, rank=1, code=3)
    assert only(judged(story, rank=1, followers=[2, 3])).followers == (2, 3)


def test_list_with_a_lost_node_that_the_report_does_not_name_has_both() -> None:
    story = judged(Story().cycle(1, 0).exit(5.0, 0, rank=1, code=1), rank=1)
    failed, lost = incidents(story.tell(20, "node_lost", lost="b", waited=14.5).events)
    assert (failed.kind, failed.rank, lost.kind, lost.node) == ("exit", 1, "node lost", "b")


def test_list_with_two_lost_nodes_has_both() -> None:
    story = Story().cycle(1, 0).tell(20, "node_lost", lost="b", waited=14.5)
    story.tell(21, "node_lost", lost="c", waited=14.5).tell(21, "node_lost", lost="b", waited=15.5)
    assert [each.node for each in incidents(story.events)] == ["b", "c"]


def test_the_resume_is_when_it_happened_not_when_it_was_told() -> None:
    story = Story().cycle(1, 0).exit(5.0, 0, rank=0, code=1).restart(5.1, to=1).cycle(6, 1)
    story.tell(9, "resume", cycle=1, rank=0, seconds=3.1).tell(
        9, "first_step", cycle=1, rank=0, step=3, at=108.25
    )
    assert only(story).resume_seconds == 3.25


def test_what_the_launcher_stopped_has_not_failed() -> None:
    story = Story().cycle(1, 0).tell(5, "stop", cycle=0)
    story.exit(5.1, 0, rank=0, signal="SIGTERM").exit(5.2, 0, rank=1, signal="SIGKILL")
    assert incidents(story.events) == []


def test_a_signal_that_is_passed_on_excuses_only_a_death_by_it() -> None:
    story = Story().cycle(1, 0).tell(2, "signal_sent", pid=pid(0, 0), signal="SIGUSR1")
    story.tell(2, "signal_sent", pid=pid(0, 1), signal="SIGUSR1")
    story.exit(2.1, 0, rank=1, signal="SIGUSR1").exit(5, 0, rank=0, signal="SIGSEGV")
    incident = only(story)
    assert (incident.kind, incident.rank, incident.followers) == ("crash", 0, ())


def test_a_rank_that_took_long_to_end_is_blamed_when_its_launcher_found_out() -> None:
    """Its peers lost their connections, were named, and all were stopped before it had ended."""
    story = Story().cycle(0, 0).exit(5.0, 0, 0, code=1)
    named = f"rank 0 (node a, pid {pid(0, 0)}): RuntimeError: connection closed (exit code 1)"
    story.restart(6.0, 1, reason=named).exit(6.5, 0, 1, code=3)
    blamed = f"rank 1 (node a, pid {pid(0, 1)}): exit code 3"
    story.tell(6.6, "cause", cycle=0, rank=1, pid=pid(0, 1), reason=blamed).cycle(7.0, 1)
    (incident,) = incidents(story.events)
    assert (incident.kind, incident.rank, incident.what) == ("exit", 1, "exit code 3")
    assert incident.followers == (0,)


def test_a_preempted_rank_that_had_to_be_killed_is_told_of() -> None:
    story = Story().cycle(0, 0).tell(8, "preemption", signal="SIGTERM")
    why = "did not leave within --term-timeout 5 s of SIGTERM"
    story.tell(8, "signal_sent", rank=0, pid=pid(0, 0), signal="SIGTERM", by="launcher")
    story.tell(13, "signal_sent", rank=0, pid=pid(0, 0), signal="SIGKILL", by="launcher", reason=why)
    story.exit(13, 0, 0, signal="SIGKILL").tell(14, "run_end", exit_code=137)
    (incident,) = incidents(story.events)
    assert incident.what == f"the launcher got SIGTERM; rank 0 {why}"


@pytest.mark.parametrize("how", [{"signal": "SIGTERM"}, {"code": 143}])
def test_a_rank_that_got_the_preemptions_signal_first_is_no_fault(how: dict[str, Any]) -> None:
    """A scheduler signals every process of the step, and the launcher is not the first to hear."""
    story = Story().cycle(0, 0).exit(8.0, 0, 1, **how).tell(8.1, "preemption", signal="SIGTERM")
    assert [incident.kind for incident in incidents(story.events)] == ["preemption"]
    earlier = Story().cycle(0, 0).exit(5.0, 0, 1, **how).tell(8.1, "preemption", signal="SIGTERM")
    assert len(incidents(earlier.events)) == 2


def test_a_preemption_of_two_nodes_is_one_and_its_exits_are_none() -> None:
    story = Story().cycle(1, 0).cycle(1, 0, node="b", first=2)
    for node, rank in (("a", 0), ("b", 2)):
        story.tell(8, "preemption", node, signal="SIGTERM")
        story.exit(9, 0, rank, node, signal="SIGTERM").tell(10, "run_end", node, exit_code=0)
    incident = only(story)
    assert (incident.kind, incident.rank, incident.what) == ("preemption", None, "the launcher got SIGTERM")
    assert incident.outcome == "the job ended with exit code 0"


def test_a_lost_node_is_the_cause_although_peers_failed_first() -> None:
    story = Story().cycle(1, 0).cycle(1, 0, node="b", first=2)
    story.exit(10, 0, rank=0, code=1).tell(20, "node_lost", lost="b", waited=14.5).restart(20.1, to=1).cycle(
        25, 1
    )
    incident = only(story)
    assert (incident.kind, incident.node, incident.rank, incident.followers) == ("node lost", "b", None, (0,))
    assert (incident.unnoticed_seconds, incident.restart_seconds) == (14.5, 5.1)


def test_the_rendezvous_host_is_lost() -> None:
    """Both nodes that are left tell of it, and the ranks' lost connections only follow."""
    story = Story().cycle(1, 0).cycle(1, 0, node="b", first=2).exit(10, 0, rank=0, code=1)
    for node, reason in (
        ("a", "no process listens at h:29500 any more"),
        ("b", "h:29500 has not answered for 8 s"),
    ):
        story.tell(20, "stop", node, cycle=0, reason="the job is lost")
        story.tell(20, "job_lost", node, reason=reason, host="h:29500").tell(20, "run_end", node, exit_code=1)
    incident = only(story)
    assert (incident.kind, incident.node, incident.rank) == ("node lost", "h:29500", None)
    assert incident.what == (
        "the node that hosts the rendezvous at h:29500 is gone: no process listens at h:29500 any more"
    )
    assert incident.followers == (0,)
    assert incident.outcome == "the job ended with exit code 1"


def _loses_its_connection(story: Story, at: float = 5.0, rank: int = 0) -> Story:
    error = {"type": "RuntimeError", "message": "[pair.cc:554] Connection closed by peer [10.0.0.2]:2031"}
    fields = {"exitcode": 1, "meaning": "exit code 1", "error": error}
    return story.tell(at, "rank_exit", cycle=0, rank=rank, pid=pid(0, rank), **fields)


def test_connections_were_lost_to_a_node_that_did_not_come_back() -> None:
    """Its launcher was killed: it wrote nothing, and its ranks died with it."""
    story = _loses_its_connection(_loses_its_connection(Story().cycle(1, 0)), 5.1, rank=1)
    judged(story, rank=None, cause="elsewhere", culprit_node="", sentence="Ranks 0-1 only followed.")
    story.restart(5.2, to=1).tell(9, "node_not_back", cycle=0, lost=["h:123"]).cycle(9.1, 1)
    incident = only(story)
    assert (incident.kind, incident.node, incident.rank, incident.followers) == (
        "node lost",
        "h:123",
        None,
        (0, 1),
    )
    assert incident.what.startswith("node h:123 did not come back; rank 0 failed: RuntimeError: ")
    assert (incident.t, incident.restart_seconds) == (START + 5, 4.2)


def test_a_node_that_does_not_come_back_after_a_failure_of_its_own_kind_is_not_the_cause() -> None:
    story = _loses_its_connection(Story().cycle(1, 0)).exit(5.1, 0, rank=1, signal="SIGSEGV")
    judged(story, rank=1, cause="signal", sentence="Rank 1 was killed by SIGSEGV.")
    story.restart(5.2, to=1).tell(9, "node_not_back", cycle=0, lost=["h:123"]).cycle(9.1, 1)
    assert (only(story).kind, only(story).rank) == ("crash", 1)


def test_a_verdict_on_a_rank_stands_where_a_node_does_not_come_back() -> None:
    """Rank 1 lives and is the culprit; the list has the verdict's rank, as the report does."""
    story = _loses_its_connection(Story().cycle(1, 0))
    judged(story, rank=1, cause="stopped", sentence="Rank 1 is stopped.")
    story.restart(5.2, to=1).tell(9, "node_not_back", cycle=0, lost=["h:123"]).cycle(9.1, 1)
    assert (only(story).kind, only(story).rank) == ("hang", 1)


def test_a_lost_connection_where_all_nodes_came_back_is_what_it_was() -> None:
    story = _loses_its_connection(Story().cycle(1, 0)).restart(5.2, to=1).cycle(9.1, 1)
    assert (only(story).kind, only(story).rank) == ("exit", 0)


GAVE_UP = "timed out waiting for the other nodes (rendezvous timeout)"


def test_giving_up_after_a_lost_node_is_an_incident_of_its_own() -> None:
    story = Story().cycle(1, 0).tell(20, "node_lost", lost="b", waited=14.5).restart(20.1, to=1)
    story.tell(80, "job_lost", reason=GAVE_UP, host="").tell(80, "run_end", exit_code=1)
    lost, gave_up = incidents(story.events)
    assert (lost.kind, lost.outcome) == ("node lost", "the job ended with exit code 1")
    assert (gave_up.kind, gave_up.node, gave_up.what) == ("job lost", "a", GAVE_UP)
    assert gave_up.outcome == "the job ended with exit code 1"


def test_a_job_that_never_began_for_want_of_nodes() -> None:
    story = Story().tell(0, "run_start").tell(60, "job_lost", reason=GAVE_UP, host="")
    incident = only(story.tell(60, "run_end", exit_code=1))
    assert (incident.kind, incident.what) == ("job lost", GAVE_UP)


def test_a_fault_on_one_node_restarts_the_other_without_an_incident_of_its_own() -> None:
    story = Story().cycle(1, 0).cycle(1.2, 0, node="b", first=2)
    story.exit(5, 0, rank=2, node="b", signal="SIGSEGV").exit(5.4, 0, rank=0, code=1)
    story.restart(5.5, to=1, node="b").restart(5.6, to=1).cycle(7, 1, node="b", first=2)
    story.cycle(7.3, 1).restart(7.4, to=1)  # told late: it still belongs to the cycle that it ended
    story.tell(8, "resume", cycle=1, rank=0).tell(8.5, "resume", "b", cycle=1, rank=2)
    incident = only(story)
    assert (incident.node, incident.rank, incident.followers) == ("b", 2, (0,))
    assert incident.resume_seconds == 3.5  # by the clock of the node that noticed


def test_clocks_a_minute_apart_change_nothing() -> None:
    def story(**ahead: float) -> Story:
        told = Story(**ahead).cycle(1, 0).cycle(1.2, 0, node="b", first=2)
        told.exit(5, 0, rank=2, node="b", signal="SIGSEGV").exit(5.4, 0, rank=0, code=1)
        return (
            told.restart(5.5, to=1).restart(5.5, to=1, node="b").cycle(7, 1).cycle(7.2, 1, node="b", first=2)
        )

    (plain,), (skewed,) = incidents(story().events), incidents(story(b=60.0).events)
    assert (skewed.rank, skewed.followers) == (plain.rank, plain.followers) == (2, (0,))
    assert skewed.restart_seconds == plain.restart_seconds
    assert skewed.t == pytest.approx(plain.t, abs=0.5)


def test_a_node_that_joins_is_a_restart_that_spends_none() -> None:
    story = Story().cycle(1, 0).restart(9, to=1, reason="1 more node(s) came to join").cycle(10, 1)
    incident = only(story)
    assert (incident.kind, incident.what) == ("restart", "1 more node(s) came to join")
    assert incident.outcome == "restarted"


def test_an_excluded_node_and_a_shutdown() -> None:
    story = (
        Story()
        .cycle(1, 0)
        .tell(5, "node_excluded", reason="rank 0 requested it: ECC errors")
        .restart(5, to=1)
    )
    story.cycle(6, 1).tell(
        9, "request", cycle=1, rank=1, pid=5, action="shutdown_workload", description="NaN loss"
    )
    story.tell(10, "run_end", exit_code=93)
    excluded, shutdown = incidents(story.events)
    assert (excluded.kind, excluded.what) == (
        "excluded",
        "node a leaves the job: rank 0 requested it: ECC errors",
    )
    assert (shutdown.kind, shutdown.rank) == ("shutdown", 1)
    assert (shutdown.number, shutdown.outcome) == (2, "the job ended with exit code 93")


def test_a_launcher_that_was_killed_and_started_again() -> None:
    story = Story().tell(0, "run_start").cycle(1, 0).tell(30, "run_start").cycle(31, 0)
    story.tell(34, "first_step", cycle=0, rank=0, step=5).tell(60, "run_end", exit_code=0)
    incident = only(story)
    assert (incident.kind, incident.run, incident.t) == ("launcher lost", 1, START + 30)
    assert (incident.outcome, incident.resume_seconds) == ("the job was started again", 4.0)


def test_a_run_directory_that_is_used_again_keeps_the_runs_apart() -> None:
    story = Story()
    for base, rank in ((0, 0), (100, 1)):
        story.tell(base, "run_start").cycle(base + 1, 0).exit(base + 5, 0, rank, code=9)
        story.tell(base + 5, "stop", cycle=0).tell(base + 6, "run_end", exit_code=9)
    first, second = incidents(story.events)
    assert [(one.run, one.cycle, one.rank) for one in (first, second)] == [(1, 0, 0), (2, 0, 1)]
    assert first.restart_seconds is None  # the second run is the scheduler's doing, not a restart


def test_a_fault_right_after_a_restart_leaves_the_first_without_a_resume() -> None:
    story = Story().cycle(1, 0).exit(5, 0, rank=0, code=1).restart(5, to=1).cycle(6, 1)
    story.exit(7, 1, rank=1, code=1).restart(7, to=2, used=2).cycle(8, 2).tell(9, "resume", cycle=2, rank=0)
    first, second = incidents(story.events)
    assert (first.restart_seconds, first.resume_seconds) == (1.1, None)
    assert (second.resume_seconds, second.outcome) == (2.0, "restarted (2 of 3)")


def test_a_wall_clock_that_is_set_back_does_no_harm() -> None:
    story = Story().cycle(1, 0).exit(5, 0, rank=0, code=1).restart(5, to=1)
    story.ahead["a"] = -3600
    story.cycle(6, 1).tell(8, "resume", cycle=1, rank=0)
    incident = only(story)
    assert (incident.restart_seconds, incident.resume_seconds) == (1.1, 3.0)


def test_a_rank_that_stays_at_its_end_was_not_noticed_until_then() -> None:
    story = Story().cycle(1, 0).tell(70, "exit_delayed", cycle=0, rank=1, pid=1001, seconds=60.0)
    report = {"rank": 1, "cause": "shutdown", "confidence": "medium", "sentence": "Rank 1 is at its exit."}
    incident = only(story.tell(71, "incident", cycle=0, culprit_node="a", job_goes_on=True, **report))
    assert (incident.kind, incident.unnoticed_seconds) == ("hang", 60.0)


@pytest.mark.parametrize(
    ("more", "effect"),
    [
        ({"instead": "c"}, "suspect: node c has taken its place"),
        ({}, "suspect: the others have continued without it"),
        ({"sick": "GPU 3 is lost"}, "sick (GPU 3 is lost): the others have continued without it"),
    ],
)
def test_what_a_suspicion_has_changed_is_told_with_the_failure(more: dict[str, object], effect: str) -> None:
    story = Story().cycle(1, 0).exit(5, 0, rank=1, code=1).restart(5.5, to=1)
    story.tell(5.7, "node_suspected", cycle=0, suspect="b", facts="node b: it crashed twice")
    story.tell(5.8, "node_replaced", cycle=0, suspect="b", **more)
    expected = f"restarted (1 of 3); suspect: node b: it crashed twice; node b is {effect}"
    assert only(story.cycle(6, 1)).outcome == expected


kinds = st.sampled_from(
    [
        "run_start", "cycle_start", "rank_start", "rank_exit", "verdict", "signal_sent", "stop", "restart", "resume",
        "preemption", "node_lost",
        "node_excluded", "node_not_back", "node_suspected", "node_replaced", "job_lost", "incident", "cause",
        "rank_failing", "request", "run_end", "first_step", "from_the_future",
    ]
)  # fmt: skip
values = (
    st.none()
    | st.integers(-2, 3)
    | st.text(max_size=3)
    | st.floats()
    | st.dictionaries(st.text(max_size=3), st.none())
    | st.lists(st.text(max_size=3), max_size=2)
    | st.just({"type": "RuntimeError", "message": "Connection reset by peer"})
    | st.sampled_from(["elsewhere", "node_lost", "exit", "high"])
)
names = st.sampled_from(
    [
        "cycle",
        "rank",
        "pid",
        "exitcode",
        "signal",
        "error",
        "waited",
        "text",
        "lost",
        "reason",
        "host",
        "cause",
        "culprit",
    ]
)
events = st.lists(
    st.builds(
        lambda kind, t, mono, node, fields: Event(kind, t, mono, node, fields, node),
        kinds, st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from("ab"),
        st.dictionaries(names, values) | st.fixed_dictionaries({"cycle": st.integers(0, 3)}),
    ),
    max_size=40,
)  # fmt: skip


@given(events)
def test_any_events_give_a_sound_list(given_events: list[Event]) -> None:
    found = incidents(given_events)
    assert [incident.number for incident in found] == list(range(1, len(found) + 1))
    assert [incident.t for incident in found] == sorted(incident.t for incident in found)
    per_cycle: dict[Any, int] = {}
    for incident in found:
        json.dumps(incident.to_dict())
        assert "\n" not in incident.what
        assert all((seconds or 0) >= 0 for seconds in (incident.restart_seconds, incident.resume_seconds))
        assert incident.rank not in incident.followers
        beside = incident.kind if incident.kind in ("preemption", "job lost") else ""
        beside = incident.node if incident.kind == "node lost" else beside
        key = incident.run, incident.cycle, beside
        per_cycle[key] = per_cycle.get(key, 0) + 1
    assert all(count == 1 for count in per_cycle.values())


def test_who_did_it_by_the_evidence_goes_before_who_noticed_it() -> None:
    story = Story().cycle(0.0, 0)
    story.exit(5.0, 0, 0, code=1)
    story.tell(
        5.2,
        "incident",
        cycle=0,
        rank=1,
        culprit_node="a",
        cause="early_exit",
        confidence="high",
        sentence="Rank 1 ended with exit code 0 while rank 0 lost its connection to it.",
    )
    (found,) = incidents(story.events)
    assert (found.kind, found.rank, found.pid, found.followers) == ("exit", 1, pid(0, 1), (0,))
    assert found.what.startswith("Rank 1 ended with exit code 0")


def test_a_monitor_that_blamed_another_is_not_heard_beside_the_evidence_of_all_nodes() -> None:
    story = Story().cycle(0.0, 0)
    own = {"cause": "lock", "culprit": 1, "confidence": "medium", "sentence": "Rank 1 waits for a lock."}
    story.tell(40.0, "verdict", cycle=0, rank=0, pid=pid(0, 0), waited=31.2, signal="SIGKILL", **own)
    whole = {"cause": "user_code", "confidence": "high", "sentence": "Rank 0 sleeps in train.py:4."}
    story.tell(40.2, "incident", cycle=0, rank=0, culprit_node="a", **whole)
    (found,) = incidents(story.events)
    assert found.rank == 0
    assert found.verdict == "Rank 0 sleeps in train.py:4. (confidence high)"


@pytest.mark.parametrize("confidence", ["low", "high"])
def test_verdict_of_a_monitor_counts_with_its_confidence(confidence: str) -> None:
    """Without an `incident` event: the rank that it names, as the report of the launcher would."""
    own = {"cause": "lock", "culprit": 1, "confidence": confidence, "sentence": "Rank 1 waits for a lock."}
    story = Story().cycle(0.0, 0)
    story.tell(40.0, "verdict", cycle=0, rank=0, pid=pid(0, 0), waited=31.2, signal="SIGKILL", **own)
    found = only(story)
    assert (found.kind, found.rank, found.followers) == ("hang", 1, (0,))
    assert found.verdict == f"Rank 1 waits for a lock. (confidence {confidence})"


def test_incident_without_a_report_has_the_exception_of_rank_failing() -> None:
    """The launcher killed a rank whose process did not end, and ended before the report was written."""
    error = {"type": "ValueError", "message": "bad batch", "at": 105.0}
    story = Story().tell(0, "run_start").cycle(1, 0)
    story.tell(5, "rank_failing", cycle=0, rank=1, pid=pid(0, 1), error=error)
    story.exit(6.0, 0, rank=1, signal="SIGKILL").tell(7, "run_end", exit_code=1)
    assert "ValueError: bad batch" in only(story).what


def test_processes_of_two_nodes_may_have_one_number() -> None:
    error = {"type": "ValueError", "message": "bad batch", "at": 105.0}
    story = Story().tell(0, "run_start").cycle(1, 0)
    story.tell(5, "rank_failing", "a", cycle=0, rank=0, pid=47, error=error)
    story.tell(
        6, "signal_sent", "b", cycle=0, rank=2, pid=47, signal="SIGTERM", by="launcher", reason="stops"
    )
    story.tell(6.2, "rank_exit", "b", cycle=0, rank=2, pid=47, signal="SIGTERM", exitcode=-15)
    story.tell(6.3, "rank_exit", "a", cycle=0, rank=0, pid=47, signal="SIGKILL", exitcode=-9)
    (found,) = incidents(story.events)
    assert (found.rank, found.node, found.followers) == (0, "a", ())
    assert "ValueError: bad batch" in found.what
