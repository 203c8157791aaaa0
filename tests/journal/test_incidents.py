"""What went wrong, who, and how long: from the events of a journal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.journal.event import Event
from holdfast.journal.incidents import KINDS, Incident, incidents
from tests.journal.story import START, Story, pid


def only(story: Story) -> Incident:
    (incident,) = incidents(story.events)
    return incident


def one_cycle(node: str = "a", **how: Any) -> Story:
    """A job whose cycle 0 begins."""
    return Story().cycle(1, 0, node, **how)


def two_nodes() -> Story:
    """Two ranks on each node."""
    return one_cycle().cycle(1.2, 0, node="b", first=2)


def judged(story: Story, at: float = 5.3, /, **fields: Any) -> Story:
    """The launcher's verdict on cycle 0 after the evidence of all nodes."""
    usual = {"cause": "exception", "confidence": "high", "culprit_node": "a"}
    usual["sentence"] = "Rank 1 raised ValueError."
    return story.tell(at, "incident", cycle=0, **{**usual, **fields})


def hung(story: Story, **fields: Any) -> Story:
    """The monitor's verdict on rank 0 of cycle 0."""
    usual = {"rank": 0, "pid": pid(0, 0), "waited": 31.2, "signal": "SIGKILL", "text": "No heartbeat."}
    return story.tell(40.0, "verdict", cycle=0, **{**usual, **fields})


def loses_its_connection(story: Story, at: float = 5.0, rank: int = 0) -> Story:
    error = {"type": "RuntimeError", "message": "[pair.cc:554] Connection closed by peer [10.0.0.2]:2031"}
    fields = {"exitcode": 1, "meaning": "exit code 1", "error": error}
    return story.tell(at, "rank_exit", cycle=0, rank=rank, pid=pid(0, rank), **fields)


def not_back(story: Story) -> Story:
    """The job restarts without a node."""
    return story.restart(5.2, to=1).tell(9, "node_not_back", cycle=0, lost=["h:123"]).cycle(9.1, 1)


def preempted_by_kill() -> Story:
    story = one_cycle().tell(8, "preemption", signal="SIGTERM")
    why = "did not leave within --term-timeout 5 s of SIGTERM"
    story.tell(8, "signal_sent", rank=0, pid=pid(0, 0), signal="SIGTERM", by="launcher")
    story.tell(13, "signal_sent", rank=0, pid=pid(0, 0), signal="SIGKILL", by="launcher", reason=why)
    return story.exit(13, 0, 0, signal="SIGKILL").tell(14, "run_end", exit_code=137)


def preempted_on_two_nodes() -> Story:
    story = two_nodes()
    for node, rank in (("a", 0), ("b", 2)):
        story.tell(8, "preemption", node, signal="SIGTERM")
        story.exit(9, 0, rank, node, signal="SIGTERM").tell(10, "run_end", node, exit_code=0)
    return story


def host_is_lost() -> Story:
    """Both nodes that are left tell of it, and the ranks' lost connections only follow."""
    story = two_nodes().exit(10, 0, rank=0, code=1)
    reasons = "no process listens at h:29500 any more", "h:29500 has not answered for 8 s"
    for node, reason in zip("ab", reasons, strict=True):
        story.tell(20, "stop", node, cycle=0, reason="the job is lost")
        story.tell(20, "job_lost", node, reason=reason, host="h:29500").tell(20, "run_end", node, exit_code=1)
    return story


def fault_on_another_node() -> Story:
    """The other one restarts without an incident of its own; what it tells late belongs to the cycle that it ended."""
    story = two_nodes().exit(5, 0, rank=2, node="b", signal="SIGSEGV").exit(5.4, 0, rank=0, code=1)
    story.restart(5.5, to=1, node="b").restart(5.6, to=1).cycle(7, 1, node="b", first=2)
    story.cycle(7.3, 1).restart(7.4, to=1)
    return story.tell(8, "resume", cycle=1, rank=0).tell(8.5, "resume", "b", cycle=1, rank=2)


def resumed_elsewhere() -> Story:
    """Only another node, whose clocks are its own, has the first step after the restart."""
    story = two_nodes().exit(5, 0, rank=0, code=1).restart(5.5, to=1).restart(5.5, to=1, node="b")
    story.cycle(7, 1).cycle(7, 1, node="b", first=2)
    return story.tell(8, "resume", "b", cycle=1, rank=2)


def set_back() -> Story:
    """The wall clock."""
    story = one_cycle().exit(5, 0, rank=0, code=1).restart(5, to=1)
    story.ahead["a"] = -3600
    return story.cycle(6, 1).tell(8, "resume", cycle=1, rank=0)


def requeued() -> Story:
    """Launchers of several nodes have new names each time."""
    story = Story()
    for life, at in ((1, 0.0), (2, 900.0)):
        for node, first in ((f"a:{life}", 0), (f"b:{life}", 2)):
            story.tell(at, "run_start", node, run_id="7").cycle(at + 1, 0, node, 2, first)
    return story.tell(904, "first_step", "a:2", cycle=0, rank=0, step=5)


def same_number() -> Story:
    """Processes of two nodes have one number."""
    story = one_cycle().tell(5, "rank_failing", "a", cycle=0, rank=0, pid=47, error=BAD_BATCH)
    sent = {"signal": "SIGTERM", "by": "launcher", "reason": "stops"}
    story.tell(6, "signal_sent", "b", cycle=0, rank=2, pid=47, **sent)
    story.tell(6.2, "rank_exit", "b", cycle=0, rank=2, pid=47, signal="SIGTERM", exitcode=-15)
    return story.tell(6.3, "rank_exit", "a", cycle=0, rank=0, pid=47, signal="SIGKILL", exitcode=-9)


BAD_BATCH = {"type": "ValueError", "message": "bad\nbatch", "at": 104.2}
GAVE_UP = "timed out waiting for the other nodes (rendezvous timeout)"
LATE = "Did not get subsequent heartbeat. Waited 31.20 seconds."
AT_ITS_EXIT = {"rank": 1, "cause": "shutdown", "sentence": "Rank 1 is at its exit.", "job_goes_on": True}
LOCK = {"cause": "lock", "culprit": 1, "sentence": "Rank 1 waits for a lock."}
SLEEPS = {"rank": 0, "cause": "user_code", "sentence": "Rank 0 sleeps in train.py:4."}
STORIES: dict[str, tuple[Story, dict[str, Any]]] = {
    "a crash": (
        one_cycle().exit(5.0, 0, rank=1, signal="SIGKILL").exit(5.2, 0, rank=0, code=1).restart(5.5, to=1)
        .exit(6, 0, rank=0, signal="SIGTERM").cycle(7, 1).tell(9, "resume", cycle=1, rank=0),
        {"number": 1, "kind": "crash", "cycle": 0, "node": "a", "rank": 1, "pid": pid(0, 1), "t": START + 5,
         "what": "killed by SIGKILL", "unnoticed_seconds": 0.0, "restart_seconds": 2.1, "resume_seconds": 4.0,
         "lost_seconds": 4.0, "outcome": "restarted (1 of 3)", "followers": (0,)},
    ),
    "a hang lasts from the last sign of life": (
        hung(one_cycle(), text=LATE, where="data_loading", step=4181).exit(40.1, 0, rank=0, signal="SIGKILL")
        .restart(40.2, to=1).cycle(41, 1).tell(42, "first_step", cycle=1, step=4150),
        {"kind": "hang", "rank": 0, "what": f"{LATE} in data_loading, step 4181", "unnoticed_seconds": 31.2,
         "resume_seconds": 2.0, "lost_seconds": pytest.approx(33.2), "followers": ()},
    ),
    "an exit with its exception": (
        one_cycle().tell(5, "rank_exit", cycle=0, rank=1, exitcode=3, meaning="exit code 3", error=BAD_BATCH)
        .tell(5.1, "stop", cycle=0).tell(6, "run_end", exit_code=3),
        {"kind": "exit", "what": "ValueError: bad batch (exit code 3)", "restart_seconds": None,
         "outcome": "the job ended with exit code 3", "lost_seconds": None},
    ),
    "an exception counts from when it was raised": (
        one_cycle().exit(5.0, 0, rank=0, code=1)
        .tell(5.4, "rank_exit", cycle=0, rank=1, exitcode=1, meaning="exit code 1", error=BAD_BATCH),
        {"rank": 1},
    ),
    **{
        f"the rank of a report with {confidence} confidence": (
            judged(one_cycle().exit(5.0, 0, 0, code=1).exit(5.1, 0, 1, code=3), rank=1, confidence=confidence),
            {"kind": "exit", "rank": 1, "pid": pid(0, 1), "what": "exit code 3", "followers": (0,),
             "verdict": f"Rank 1 raised ValueError. (confidence {confidence})"},
        )
        for confidence in ("high", "low")
    },
    "a report that replaced another": (
        judged(
            judged(one_cycle().exit(5.0, 0, rank=0, code=1), rank=0, report="/runs/a/incidents/0001"),
            6.0, rank=1, report="/runs/a/incidents/0002",
        ),
        {"rank": 1, "report": "0002"},
    ),
    "a hanging culprit and a failed victim": (
        judged(one_cycle().exit(5.0, 0, 0, code=1), rank=1, cause="user_code", sentence="Rank 1 sleeps."),
        {"kind": "hang", "rank": 1, "what": "Rank 1 sleeps.", "followers": (0,)},
    ),
    "a rank that ended with 0": (
        judged(one_cycle().exit(5.0, 0, 0, code=1), rank=1, cause="early_exit", sentence="Rank 1 ended."),
        {"kind": "exit", "rank": 1, "pid": pid(0, 1), "followers": (0,), "what": "Rank 1 ended."},
    ),
    "the report of a lost node": (
        judged(one_cycle().exit(5.0, 0, rank=0, code=1), rank=None, cause="node_lost", culprit_node="b"),
        {"kind": "node lost", "node": "b", "rank": None, "followers": (0,)},
    ),
    "the report of a lost node that the launchers lost too": (
        judged(one_cycle().exit(5.0, 0, rank=0, code=1), rank=None, cause="node_lost", culprit_node="b")
        .tell(20, "node_lost", lost="b", waited=14.5),
        {"kind": "node lost", "node": "b", "unnoticed_seconds": 14.5},
    ),
    **{
        f"a report without a rank: {cause}": (
            judged(one_cycle().exit(5, 0, 1, code=1), rank=None, cause=cause, culprit_node="", sentence="All wait."),
            {"kind": "exit", "rank": None, "pid": None, "what": "All wait.", "followers": (1,)},
        )
        for cause in ("mismatched_collective", "unknown", "slow", "elsewhere")
    },
    "the followers of a report": (
        judged(
            one_cycle(ranks=4).exit(5.0, 0, rank=0, code=1).exit(5.1, 0, rank=1, code=3), rank=1, followers=[2, 3]
        ),
        {"followers": (2, 3)},
    ),
    "a monitor that blamed another": (
        judged(hung(one_cycle(), **LOCK, confidence="medium"), 40.2, **SLEEPS),
        {"rank": 0, "verdict": "Rank 0 sleeps in train.py:4. (confidence high)"},
    ),
    **{
        f"a monitor's verdict with {confidence} confidence": (
            hung(one_cycle(), **LOCK, confidence=confidence),
            {"kind": "hang", "rank": 1, "followers": (0,),
             "verdict": f"Rank 1 waits for a lock. (confidence {confidence})"},
        )
        for confidence in ("low", "high")
    },
    "a resume is when it happened": (
        one_cycle().exit(5.0, 0, rank=0, code=1).restart(5.1, to=1).cycle(6, 1)
        .tell(9, "resume", cycle=1, rank=0, seconds=3.1).tell(9, "first_step", cycle=1, rank=0, step=3, at=108.25),
        {"resume_seconds": 3.25},
    ),
    "a signal that is passed on excuses only a death by it": (
        one_cycle().tell(2, "signal_sent", pid=pid(0, 0), signal="SIGUSR1")
        .tell(2, "signal_sent", pid=pid(0, 1), signal="SIGUSR1")
        .exit(2.1, 0, rank=1, signal="SIGUSR1").exit(5, 0, rank=0, signal="SIGSEGV"),
        {"kind": "crash", "rank": 0, "followers": ()},
    ),
    "a preempted rank that had to be killed": (
        preempted_by_kill(),
        {"what": "the launcher got SIGTERM; rank 0 did not leave within --term-timeout 5 s of SIGTERM"},
    ),
    **{
        f"a rank got the preemption's signal first: {how}": (
            one_cycle().exit(8.0, 0, 1, **how).tell(8.1, "preemption", signal="SIGTERM"), {"kind": "preemption"},
        )
        for how in ({"signal": "SIGTERM"}, {"code": 143})
    },
    "a preemption of two nodes": (
        preempted_on_two_nodes(),
        {"kind": "preemption", "rank": None, "what": "the launcher got SIGTERM",
         "outcome": "the job ended with exit code 0"},
    ),
    "a lost node although peers failed first": (
        two_nodes().exit(10, 0, rank=0, code=1).tell(20, "node_lost", lost="b", waited=14.5).restart(20.1, to=1)
        .cycle(25, 1),
        {"kind": "node lost", "node": "b", "rank": None, "followers": (0,), "unnoticed_seconds": 14.5,
         "restart_seconds": 5.1},
    ),
    "the rendezvous host": (
        host_is_lost(),
        {"kind": "node lost", "node": "h:29500", "rank": None, "followers": (0,),
         "what": "the node that hosts the rendezvous at h:29500 is gone: no process listens at h:29500 any more",
         "outcome": "the job ended with exit code 1"},
    ),
    "connections were lost to a node that did not come back": (
        not_back(judged(loses_its_connection(loses_its_connection(one_cycle()), 5.1, rank=1), rank=None,
                        cause="elsewhere", culprit_node="", sentence="Ranks 0-1 only followed.")),
        {"kind": "node lost", "node": "h:123", "rank": None, "followers": (0, 1), "t": START + 5,
         "what": "node h:123 did not come back; rank 0 failed: RuntimeError: [pair.cc:554] Connection closed by peer "
                 "[10.0.0.2]:2031 (exit code 1)", "restart_seconds": 4.2},
    ),
    "a failure of its own kind, and a node that does not come back": (
        not_back(judged(loses_its_connection(one_cycle()).exit(5.1, 0, 1, signal="SIGSEGV"), rank=1, cause="signal")),
        {"kind": "crash", "rank": 1},
    ),
    "a culprit that lives, and a node that does not come back": (
        not_back(judged(loses_its_connection(one_cycle()), rank=1, cause="stopped")), {"kind": "hang", "rank": 1},
    ),
    "a lost connection, and all nodes came back": (
        loses_its_connection(one_cycle()).restart(5.2, to=1).cycle(9.1, 1), {"kind": "exit", "rank": 0},
    ),
    "a job that never began because nodes are missing": (
        Story().tell(0, "run_start").tell(60, "job_lost", reason=GAVE_UP, host="").tell(60, "run_end", exit_code=1),
        {"kind": "job lost", "what": GAVE_UP},
    ),
    "a fault on another node": (
        fault_on_another_node(), {"node": "b", "rank": 2, "followers": (0,), "resume_seconds": 3.5},
    ),
    "a node that joins spends no restart": (
        one_cycle().restart(9, to=1, reason="1 more node(s) came to join").cycle(10, 1),
        {"kind": "restart", "what": "1 more node(s) came to join", "outcome": "restarted"},
    ),
    "a launcher was killed and started again": (
        Story().tell(0, "run_start").cycle(1, 0).tell(30, "run_start").cycle(31, 0)
        .tell(34, "first_step", cycle=0, rank=0, step=5).tell(60, "run_end", exit_code=0),
        {"kind": "launcher lost", "run": 1, "t": START + 30, "outcome": "the job was started again",
         "resume_seconds": 4.0},
    ),
    "the launchers of two nodes were killed, and the job was started again under its id": (
        requeued(), {"kind": "launcher lost", "run": 1, "t": START + 900, "node": "a:1, b:1",
                     "outcome": "the job was started again", "resume_seconds": 4.0},
    ),
    "a resume that another node has": (resumed_elsewhere(), {"node": "a", "resume_seconds": 3.0}),
    "a wall clock that is set back": (set_back(), {"restart_seconds": 1.1, "resume_seconds": 3.0}),
    "a rank that stays at its end": (
        judged(one_cycle().tell(70, "exit_delayed", cycle=0, rank=1, pid=1001, seconds=60.0), 71, **AT_ITS_EXIT),
        {"kind": "hang", "unnoticed_seconds": 60.0},
    ),
    "the exception of a rank that was killed before its report": (
        one_cycle().tell(5, "rank_failing", cycle=0, rank=1, pid=pid(0, 1), error=BAD_BATCH)
        .exit(6.0, 0, rank=1, signal="SIGKILL").tell(7, "run_end", exit_code=1),
        {"what": "ValueError: bad batch (killed by SIGKILL)"},
    ),
    "processes of two nodes with one number": (
        same_number(),
        {"rank": 0, "node": "a", "followers": (), "what": "ValueError: bad batch (exit code -9)"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_story_has_one_incident(name: str) -> None:
    story, expected = STORIES[name]
    incident = only(story)
    assert {field: getattr(incident, field) for field in expected} == expected


QUIET = Story().tell(0, "run_start").cycle(1, 0).exit(9, 0, rank=0, code=0).exit(9, 0, rank=1, code=0)
STOPPED = one_cycle().tell(5, "stop", cycle=0).exit(5.1, 0, 0, signal="SIGTERM")
STOPPED.exit(5.2, 0, 1, signal="SIGKILL")


@pytest.mark.parametrize("story", [QUIET.tell(10, "run_end", exit_code=0), STOPPED])
def test_story_without_a_fault_has_none(story: Story) -> None:
    """What the launcher stopped has not failed."""
    assert incidents(story.events) == incidents([]) == []


def test_an_exit_long_before_a_preemption_is_a_fault() -> None:
    story = one_cycle().exit(5.0, 0, 1, code=143).tell(8.1, "preemption", signal="SIGTERM")
    assert len(incidents(story.events)) == 2


def test_lost_nodes_that_no_report_names_are_incidents_of_their_own() -> None:
    story = judged(one_cycle().exit(5.0, 0, rank=1, code=1), rank=1)
    for at, lost in (20, "b"), (21, "c"), (21, "b"):
        story.tell(at, "node_lost", lost=lost, waited=14.5)
    found = [(each.kind, each.rank, each.node) for each in incidents(story.events)]
    assert found == [("exit", 1, "a"), ("node lost", None, "b"), ("node lost", None, "c")]


@pytest.mark.parametrize(
    ("host", "reason"), [("", GAVE_UP), ("h:29500", "no process listens there any more")]
)
def test_the_loss_of_the_job_after_a_lost_node_is_an_incident_of_its_own(host: str, reason: str) -> None:
    story = one_cycle().tell(20, "node_lost", lost="b", waited=14.5).restart(20.1, to=1)
    story.tell(80, "job_lost", reason=reason, host=host).tell(80, "run_end", exit_code=1)
    lost, second = incidents(story.events)
    assert (lost.kind, lost.node, lost.outcome) == ("node lost", "b", "the job ended with exit code 1")
    assert (second.kind, second.node, second.outcome) == ("job lost", "a", lost.outcome)
    assert second.what.endswith(reason)


def test_clocks_a_minute_apart_change_nothing() -> None:
    def story(**ahead: float) -> Story:
        told = Story(**ahead).cycle(1, 0).cycle(1.2, 0, node="b", first=2)
        told.exit(5, 0, rank=2, node="b", signal="SIGSEGV").exit(5.4, 0, rank=0, code=1)
        told.restart(5.5, to=1).restart(5.5, to=1, node="b")
        return told.cycle(7, 1).cycle(7.2, 1, node="b", first=2)

    (plain,), (skewed,) = incidents(story().events), incidents(story(b=60.0).events)
    assert (skewed.rank, skewed.followers) == (plain.rank, plain.followers) == (2, (0,))
    assert skewed.restart_seconds == plain.restart_seconds
    assert skewed.t == pytest.approx(plain.t, abs=0.5)


def test_an_excluded_node_and_a_shutdown() -> None:
    story = one_cycle().tell(5, "node_excluded", reason="rank 0 requested it: ECC errors").restart(5, to=1)
    asked = {"action": "shutdown_workload", "description": "NaN loss"}
    story.cycle(6, 1).tell(9, "request", cycle=1, rank=1, pid=5, **asked).tell(10, "run_end", exit_code=93)
    excluded, shutdown = incidents(story.events)
    reason = "node a leaves the job: rank 0 requested it: ECC errors"
    assert (excluded.kind, excluded.what) == ("excluded", reason)
    assert (shutdown.kind, shutdown.rank) == ("shutdown", 1)
    assert (shutdown.number, shutdown.outcome) == (2, "the job ended with exit code 93")


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


kinds = st.sampled_from(sorted(KINDS | {"from_the_future"}))
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
    ["cycle", "rank", "pid", "exitcode", "signal", "error", "waited", "text", "lost"]
) | st.sampled_from(["reason", "host", "cause", "culprit", "report"])
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
