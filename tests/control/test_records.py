"""The next cycle record: budgets, the membership that it keeps or forms anew, suspects, values of other versions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control.gathering import changed_members, on_gather, place
from holdfast.fault_tolerance.launcher.control.node import Gather, Node, Run
from holdfast.fault_tolerance.launcher.control.records import (
    CALL_OFF_BUDGET,
    FIRST,
    HOUR,
    JOIN_BUDGET,
    CycleRecord,
    Ending,
    Kind,
    Member,
    Membership,
    Settings,
    View,
    encode,
    entries,
)
from holdfast.fault_tolerance.launcher.control.running import on_run
from holdfast.fault_tolerance.launcher.control.suspects import (
    RECENT,
    decoded,
    encoded,
    of_earlier_jobs,
    suspected_by,
)
from holdfast.incidents.suspicions import Failure
from holdfast.incidents.verdict import HIGH, LOW
from holdfast.journal.event import Event

BEGAN = Ending(FIRST, Settings(Member("a"), max_restarts=3), began=True, job_time=100.0)


def _set(ending: Ending, **changes: Any) -> Ending:
    """As if the user had set this."""
    return replace(ending, settings=replace(ending.settings, **changes))


@pytest.mark.parametrize(
    ("used", "limit", "reset", "reached", "step", "checkpoints", "expected"),
    [
        (0, 1, False, -1, 5, 0, (Kind.RESTART, 1)),
        (1, 1, False, -1, 5, 0, (Kind.END, 1)),
        (0, 0, True, -1, 5, 0, (Kind.END, 0)),
        (3, 3, True, 5, 6, 0, (Kind.RESTART, 1)),
        (3, 3, True, 5, 5, 0, (Kind.END, 3)),
        (3, 3, True, 5, 2, 1, (Kind.RESTART, 1)),
        (2, 3, True, 5, -1, 0, (Kind.RESTART, 3)),
    ],
)
def test_restart_uses_the_budget_of_the_record(
    used: int, limit: int, reset: bool, reached: int, step: int, checkpoints: int, expected: tuple[Kind, int]
) -> None:
    """What counts stands in the record, whichever node writes the next one."""
    now = replace(FIRST, restarts=used, reached_step=reached)
    ending = replace(BEGAN, now=now, step=step, checkpoints=checkpoints)
    record = _set(ending, max_restarts=limit, reset_on_progress=reset).restart("it failed")
    assert (record.kind, record.restarts) == expected
    assert record.reached_step == max(reached, step)


@pytest.mark.parametrize(
    ("before", "stalled", "found", "steps", "most", "expected"),
    [
        (100, 1, 200, 5, 2, (Kind.RESTART, 0, 200)),  # progress
        (100, 0, 199, 5, 2, (Kind.RESTART, 1, 199)),  # less than the minimum
        (100, 1, 199, 5, 2, (Kind.END, 2, 199)),
        (100, 1, 100, 5, 0, (Kind.RESTART, 2, 100)),  # never
        (0, 0, 0, 5, 1, (Kind.END, 1, 0)),  # no checkpoint was ever written
        (100, 1, -1, 5, 2, (Kind.RESTART, 1, 100)),  # the file cannot be read
        (-1, 0, 700, 5, 1, (Kind.RESTART, 0, 700)),  # the first number that could be read
        (100, 1, 40, 5, 2, (Kind.END, 2, 40)),  # an older checkpoint was resumed
        (40, 1, 140, 5, 2, (Kind.RESTART, 0, 140)),
    ],
)
def test_failed_cycles_without_progress_end_the_job(
    before: int, stalled: int, found: int, steps: int, most: int, expected: tuple[Kind, int, int]
) -> None:
    """The count and the number stand in the record, whichever node writes the next one; restarts are left."""
    now = replace(FIRST, iteration=before, stalled=stalled)
    ending = replace(BEGAN, now=now, step=steps, iteration=found)
    ending = _set(ending, max_restarts=10, least_progress=100, most_stalled=most, no_restart_code=42)
    record = ending.restart("it failed", exit_code=5)
    assert (record.kind, record.stalled, record.iteration) == expected
    assert record.no_progress == (record.kind is Kind.END)
    assert record.is_trouble, "evidence is wanted whatever the exit code is"
    assert record.exit_code == (42 if record.kind is Kind.END else 0)
    assert CycleRecord.decode(record.encode(), record.cycle) == record


@pytest.mark.parametrize(
    ("before", "failure", "most", "expected"),
    [
        (("E at step 23", 2), "E at step 23", 3, (Kind.END, 3)),
        (("E at step 23", 1), "E at step 23", 3, (Kind.RESTART, 2)),
        (("E at step 23", 2), "E at step 24", 3, (Kind.RESTART, 1)),
        (("E at step 23", 2), "", 3, (Kind.RESTART, 0)),
        (("", 0), "", 1, (Kind.RESTART, 0)),
        (("", 0), "E at step 23", 1, (Kind.END, 1)),
        (("E at step 23", 9), "E at step 23", 0, (Kind.RESTART, 10)),  # never
        (("E at step 23", 2), None, 3, (Kind.RESTART, 2)),  # a peer was lost
    ],
)
def test_cycles_with_the_same_failure_end_the_job(
    before: tuple[str, int], failure: str | None, most: int, expected: tuple[Kind, int]
) -> None:
    """Whichever node writes the next record; restarts are left."""
    now = replace(FIRST, failure=before[0], same_failures=before[1])
    ending = _set(replace(BEGAN, now=now), max_restarts=10, same_failure_limit=most, no_restart_code=42)
    record = ending.restart("it failed", exit_code=5, failure=failure)
    assert (record.kind, record.same_failures) == expected
    assert record.is_same_failure == (record.kind is Kind.END) and record.is_trouble
    assert record.exit_code == (42 if record.kind is Kind.END else 0)
    assert CycleRecord.decode(record.encode(), record.cycle) == record


def test_a_record_without_a_failure_keeps_all_counts() -> None:
    now = replace(FIRST, failure="E at step 23", same_failures=2, iteration=10, stalled=1)
    joined = replace(BEGAN, now=now, iteration=50).join(1)
    assert joined is not None and (joined.failure, joined.same_failures) == (now.failure, 2)
    assert (joined.iteration, joined.stalled) == (10, 1)


def test_one_measure_of_progress_counts_for_both_budgets() -> None:
    """Steps were made, and nothing was saved: with a number that is no progress, without one it is."""
    now = replace(FIRST, restarts=1, reached_step=5, iteration=10)
    ending = _set(replace(BEGAN, now=now, step=90), max_restarts=1, reset_on_progress=True)
    assert ending.restart("it failed").kind is Kind.RESTART
    assert replace(ending, iteration=10).restart("it failed").kind is Kind.END
    assert replace(ending, iteration=11).restart("it failed").restarts == 1


def test_restart_with_all_nodes_keeps_the_membership() -> None:
    record = BEGAN.restart("a rank failed")
    for each in record, replace(BEGAN, now=record).restart("again"):
        assert (each.gather, each.formed, each.base) == (False, 0, 0)


@pytest.mark.parametrize(
    ("lost", "waiting", "room", "asked", "gather"),
    [
        ((), 0, 1, False, False),
        ((), 1, 0, False, True),
        ((), 1, 1, False, True),
        (("b",), 0, 0, False, True),
        (("b",), 1, 0, False, True),
        (
            (),
            0,
            0,
            True,
            True,
        ),  # a rank only lost a peer: a whole node may be gone, without being known as lost
    ],
)
def test_restart_forms_a_membership_when_nodes_change(
    lost: tuple[str, ...], waiting: int, room: int, asked: bool, gather: bool
) -> None:
    record = replace(BEGAN, waiting=waiting, room=room).restart("it failed", lost=lost, gather=asked)
    assert (record.gather, record.lost) == (gather, lost)


def test_role_ranks_count_the_nodes_of_one_role() -> None:
    members = Membership((Member("a", 2, role="x"), Member("b", 4, role="y"), Member("c", 3, role="x")))
    assert [members.role_ranks(name) for name in "abc"] == [(0, 5), (0, 4), (2, 5)]


def test_call_off_remembers_lost_nodes_and_has_a_budget() -> None:
    record = BEGAN.restart("node b is gone", lost=["b"])
    for number in range(CALL_OFF_BUDGET):
        record = replace(BEGAN, now=record, began=False).call_off("no answer", [f"c{number}"])
        assert record.kind is Kind.JOIN
        assert record.base == 0, "nodes that trained keep their right to a place"
    assert record.lost[:2] == ("b", "c0")
    end = replace(BEGAN, now=record, began=False).call_off("no answer")
    assert (end.kind, end.exit_code) == (Kind.END, 1)
    assert "cycles in a row were called off" in end.reason


def test_join_keeps_its_distance_and_an_hourly_budget() -> None:
    ending, joins = BEGAN, 0
    for second in range(0, int(HOUR), 10):
        ending = replace(ending, job_time=float(second))
        if (record := ending.join(1)) is not None:
            joins += 1
            ending = replace(ending, now=record)
    assert joins == JOIN_BUDGET
    assert ending.now.joins[1] - ending.now.joins[0] == 30.0
    assert replace(ending, job_time=HOUR + 10.0).join(1) is not None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from([*CycleRecord.__dataclass_fields__, "since_9_9"])


@given(st.one_of(VALUES, st.dictionaries(FIELDS, VALUES)))
def test_decode_of_any_value_is_a_record(value: object) -> None:
    """A launcher of another version, or a foreign program, may have written it."""
    record = CycleRecord.decode(json.dumps(value), 4)
    assert record.cycle == 4
    assert replace(BEGAN, now=record).restart("it failed").cycle == 5
    assert CycleRecord.decode(record.encode(), 4) == record


@given(st.text(max_size=20))
def test_decode_of_any_text_lets_nodes_join(text: str) -> None:
    record = CycleRecord.decode(text, 2)
    assert record.cycle == 2
    assert entries(text) == {} or '"node"' in text


def test_view_of_a_growing_log_equals_a_fresh_one() -> None:
    """Lines that are written twice count once; a line that is no JSON counts for nothing."""
    view, text = View({}), ""
    for line in ('{"node":"a","x":1}', "garbage", '{"node":"b"}', '{"node":"a","x":2}', "[1]"):
        text += line + "\n"
        view["log"] = text
        assert view.log("log") == entries(text)
    assert view.log("log") == {"a": {"node": "a", "x": 2}, "b": {"node": "b"}}
    assert view.log("none") == {}


# -- which nodes take part, in which order; when a membership is formed anew; which nodes past failures make suspect


def members(text: str) -> list[Member]:
    """`a b:2`: names, with a number after a colon."""
    found = [word.partition(":") for word in text.split()]
    return [Member(name, order=int(order or -1)) for name, _, order in found]


def in_domains(text: str) -> list[Member]:
    """`a/x b/y`: names, each with a domain."""
    return [Member(name, domain=domain) for name, _, domain in (word.partition("/") for word in text.split())]


def names(nodes: tuple[Member, ...]) -> str:
    return " ".join(node.node for node in nodes)


@pytest.mark.parametrize(
    ("asked", "before", "most", "expected"),
    [
        ("a/x b/y c/x d/y", "", 4, "a c b d"),
        ("a/x b/y c/x d/z", "", 4, "a c"),
        ("a/x b/x c/x d/y", "", 4, "a b"),  # c and d are spares
        ("a/x b/x c/y d/y", "c d", 2, "c d"),
        ("a/x b/x c/y d/y", "c d", 4, "c d a b"),
        ("c/y d/y e/y a/x b/x", "c lost a b", 4, "c d a b"),
        ("a/x b/y", "", 2, ""),
    ],
)
def test_segments_are_complete_groups_of_one_domain(
    asked: str, before: str, most: int, expected: str
) -> None:
    previous = Membership(tuple(members(before)))
    assert names(place(in_domains(asked), previous, most, segment=2)) == expected


@pytest.mark.parametrize(
    ("asked", "before", "most", "expected"),
    [
        ("node10 node2 node1", "", 3, "node1 node2 node10"),
        ("rack1-node10 rack1-node9 rack0-node11", "", 3, "rack0-node11 rack1-node9 rack1-node10"),
        ("a:2 b:0 c:1", "", 3, "b c a"),
        ("a c:7 b", "", 3, "c a b"),
        ("a b c d", "", 2, "a b"),
        ("c b a", "b c a", 3, "b c a"),
        ("a c spare", "a b c", 3, "a spare c"),
        ("a c", "a b c", 3, "a c"),
        ("spare1 c spare2", "a b c", 3, "spare1 spare2 c"),
        ("a b c new", "a b", 4, "a b c new"),
        ("spare a b c", "a b c", 3, "a b c"),
        ("spare:0 b:2", "a b", 2, "spare b"),
        ("", "a b", 2, ""),
    ],
)
def test_place_keeps_places(asked: str, before: str, most: int, expected: str) -> None:
    previous = Membership(tuple(members(before)))
    assert names(place(members(asked), previous, most)) == expected


NODES = st.lists(st.integers(0, 30), unique=True, max_size=12).map(
    lambda found: [f"n{each}" for each in found]
)


@given(NODES, NODES, st.integers(1, 12))
def test_place_never_drops_a_trained_node_for_a_new_one(
    asked: list[str], before: list[str], most: int
) -> None:
    """Whatever the nodes, at most `most` are chosen, each once, and a place that is kept is kept in order."""
    previous = Membership(tuple(map(Member, before[:most])))
    chosen = [node.node for node in place(list(map(Member, asked)), previous, most)]
    assert len(set(chosen)) == len(chosen) == min(len(asked), most)
    trained = [name for name in before[:most] if name in asked]
    assert [name for name in chosen if name in trained] == trained


@pytest.mark.parametrize(
    ("waiting", "suspect", "excludes", "segment", "most", "sick", "expected"),
    [
        ("", "", False, 1, 2, "card 3", ""),
        ("c/y", "", False, 1, 2, "card 3", "node a is sick: card 3"),
        ("c/y", "c", False, 1, 2, "card 3", "node a is sick: card 3"),
        ("c/y", "c", True, 1, 2, "card 3", ""),
        ("c/y", "y", True, 1, 2, "card 3", ""),  # its rack
        ("silent/y", "", False, 1, 2, "card 3", ""),
        ("c/y", "", False, 2, 2, "card 3", ""),
        ("c/x", "", False, 2, 2, "card 3", "node a is sick: card 3"),
        ("c/y d/y", "", False, 2, 2, "card 3", "node a is sick: card 3"),
        ("c/y d/y", "d", True, 2, 2, "card 3", ""),
        ("c/y d/y", "", False, 1, 4, "", "2 more nodes came to join"),
        ("c/y d/y", "d", True, 1, 4, "", "1 more node came to join"),
        ("c/y d/y", "d", True, 2, 4, "", ""),
        ("c/y d/y", "", False, 2, 4, "", "2 more nodes came to join"),
    ],
)
def test_membership_of_a_healthy_job_is_formed_anew_where_the_nodes_that_wait_can_help(
    waiting: str, suspect: str, excludes: bool, segment: int, most: int, sick: str, expected: str
) -> None:
    """Two nodes train, a and b, and two are needed; a may be sick."""
    trains, waits = in_domains("a/x b/x"), in_domains(waiting)
    settings = Settings(
        trains[0], least=2, most=most, exclude_suspects=excludes, exclude_sick=True, segment=segment
    )
    membership = Membership(tuple(trains), ((suspect, ""),) if suspect else ())
    node = Node(settings, FIRST, membership, has_begun=True, health=sick, may_leave=bool(sick))
    node.view["join/0"] = "".join(encode({"node": each.node, "domain": each.domain}) + "\n" for each in waits)
    node.contact.has_moved = {f"alive/{each.node}" for each in waits if each.node != "silent"}
    actions = on_run(node, Run(), m.Tick(), 0.0)
    reasons = [action.new for action in actions if isinstance(action, m.Cas)]
    assert [f'"reason":"{expected}"' in each for each in reasons] == ([True] if expected else [])


@pytest.mark.parametrize(("sick", "most", "seconds"), [("card 3", 2, "2"), ("", 3, "30"), ("", 2, "")])
def test_log_says_how_long_the_job_waits_for_more_nodes(sick: str, most: int, seconds: str) -> None:
    node = Node(Settings(Member("a"), least=2, most=most))
    asks = "".join(encode({"node": name, "sick": sick}) + "\n" for name in "ab")
    node.view.update({"cycle/1": "", "left": "", "failures": "", "join/0": asks})
    phase = Gather()
    actions = [*on_gather(node, phase, m.Tick(), 1.5), *on_gather(node, phase, m.Tick(), 2.5)]
    lines = [action.text for action in actions if isinstance(action, m.Log)]
    assert [f"waits {seconds} s for more nodes" in line for line in lines] == ([True] if seconds else [])


@pytest.mark.parametrize(
    ("me", "after", "why", "expected", "more"),
    [
        ("a", "a c", "card 3", "sick, node c takes its place: card 3", {"sick": "card 3", "instead": "c"}),
        ("a", "a", "card 3", "sick, the others continue without it: card 3", {"sick": "card 3"}),
        ("a", "a c", "", "suspect: node c takes its place", {"instead": "c"}),
        ("c", "a c", "card 3", "sick, it has no place: card 3", None),
        ("a", "a b", "card 3", "sick, it trains, as no other node waits for its place: card 3", None),
    ],
)
def test_node_that_is_sick_or_suspect_is_logged_once(
    me: str, after: str, why: str, expected: str, more: dict[str, str] | None
) -> None:
    """On each node; `more` are fields of the event of node 0. Nodes a and b trained."""
    node = Node(Settings(Member(me)), CycleRecord(1, Kind.JOIN, base=0))
    node.view["members/0"] = Membership((Member("a"), Member("b"))).encode()
    node.membership = Membership(tuple(map(Member, after.split())), (("b", why),))
    actions = changed_members(node)
    assert [action.text for action in actions if isinstance(action, m.Log)] == [f"node b is {expected}"]
    events = [action for action in actions if isinstance(action, m.Journal)]
    fields = [event.fields for event in events if event.kind == "node_replaced"]
    assert fields == ([] if more is None else [{"cycle": 0, "suspect": "b", **more}])


# -- nodes that past failures make suspect -------------------------------------------------------------------


def crash(node: str, cycle: int, **more: Any) -> Failure:
    fields = {"node": node, "confidence": HIGH, "step": 10 * cycle, "cycle": cycle, "at": float(cycle)}
    return Failure("signal", **{**fields, **more})


def log(*failures: Failure) -> str:
    return "".join(encoded(each) + "\n" for each in failures)


def test_a_log_has_the_surest_judgement_of_each_cycle_in_order() -> None:
    late, sure = crash("a", 1), crash("b", 2)
    assert decoded(log(sure, crash("c", 2, confidence=LOW), late)) == [late, sure]
    assert decoded('{"kind":"of another version","cycle":3}\nno JSON\n' + log(sure)) == [sure]
    assert len(decoded(log(*(crash("a", cycle) for cycle in range(40))))) == RECENT


@pytest.mark.parametrize(
    ("nodes", "hardware", "expected"), [(2, "", ["a"]), (1, "", []), (1, "GPU 3 is lost", ["a"])]
)
def test_the_one_node_of_a_job_is_suspect_by_its_hardware_only(
    nodes: int, hardware: str, expected: list[str]
) -> None:
    newest = crash("a", 2, hardware=hardware)
    assert [each.what for each in suspected_by(newest, log(crash("a", 1), newest), nodes)] == expected


def test_pair_of_a_failure_is_named_and_no_node_is() -> None:
    """Also when it has failed before: the link stays suspect, and neither node becomes so."""
    before, newest = (Failure("network", peers=("a", "b"), cycle=cycle, at=float(cycle)) for cycle in (1, 2))
    found = suspected_by(newest, log(before, newest), 4)
    assert [each.what for each in found] == ["a and b"]
    assert "one of them, or the link between them" in found[0].facts
    assert not newest.accused
    assert suspected_by(crash("c", 3), log(before, newest, crash("c", 3)), 4) == []


def test_what_an_older_failure_made_suspect_is_not_named_again() -> None:
    newest = crash("b", 2)
    assert suspected_by(newest, log(crash("a", 1, hardware="GPU 3 is lost"), newest), 4) == []


def test_a_machine_that_an_earlier_job_suspected_is_so_for_an_hour() -> None:
    def event(name: str, at: float, facts: str = "GPU 3 is lost") -> Event:
        return Event("node_suspected", at, 0.0, "x:1", {"suspect": name, "facts": facts})

    rack = Event("node_suspected", 9_999.0, 0.0, "x:1", {"domain": "rack1", "facts": "two of it failed"})
    events = [event("a:1", 6_000.0), event("b:2", 7_000.0), event("b:3", 9_000.0, "again"), rack]
    lines = of_earlier_jobs([*events, Event("incident", 9_999.0, 0.0, "a:1", {})], 10_000.0)
    (found,) = decoded("\n".join(lines))
    assert (found.node, found.at, found.cycle, found.accused) == ("b", -1000.0, -1, frozenset({"b"}))
    newest = crash("c", 0, hardware="GPU 1 is lost")
    assert [each.what for each in suspected_by(newest, "\n".join([*lines, log(newest)]), 4)] == ["c"]
