"""The rules on any evidence, and on simulated jobs of which the truth is known."""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import random
import time
import zlib
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.incidents import evidence as E
from holdfast.incidents import judge as judge_fragments
from holdfast.incidents import rules
from holdfast.incidents.evidence import Case
from holdfast.incidents.verdict import HIGH, KINDS, LOW, MEDIUM, Verdict
from holdfast.incidents.wire import SCHEMA, encoded, node_of, packed, unpacked
from tests.incidents import simulated_jobs
from tests.incidents.cases import (
    INSTALLED,
    STACKS,
    board,
    case,
    entry,
    frames,
    judge,
    node,
    process,
    raised,
    rank,
)
from tests.incidents.evidence_strategies import CASES, NODES, TEXTS, WORDS, scrambled
from tests.incidents.simulated_jobs import Truth, outcome, simulated


def _numbered(one: E.NodeEvidence, at: int) -> E.NodeEvidence:
    """With each rank's number and each node's once, as in every job."""
    ranks = tuple(
        replace(each, rank=10 * at + number, pid=100 * at + number) for number, each in enumerate(one.ranks)
    )
    return replace(one, node=f"n{at}", node_rank=at, ranks=ranks)


@given(CASES)
def test_it_never_raises_and_names_a_rank_of_the_case_or_nobody(found: Case) -> None:
    verdict = judge(found)

    numbers = {each.rank for each in found.ranks}
    assert verdict.rank is None or verdict.rank in numbers
    assert verdict.rank not in verdict.followers and set(verdict.followers) <= numbers
    assert 0 < len(verdict.sentence) <= 300 and "\n" not in verdict.sentence


@given(CASES, st.data())
def test_no_text_for_people_changes_a_verdict(found: Case, data: st.DataObject) -> None:
    """No rule parses a text: what a rule needs is a code."""
    drawn: dict[str, str] = {}

    def reworded(text: str) -> str:
        """The same for the same: ranks that raise the same do so in other words too."""
        if text not in drawn:
            word = data.draw(WORDS)
            drawn[text] = f"{len(drawn)} {word}" if word in drawn.values() else word
        return drawn[text]

    other = Case(scrambled(found.nodes, reworded))
    one, two = rules.judge(found), rules.judge(other)

    assert _decided(one) == _decided(two)


def _decided(found: Any) -> Any:
    verdict = found.verdict
    activities = [(each.rank, each.kind, each.strength, each.moves) for each in found.activities]
    return verdict.kind, verdict.rank, verdict.confidence, verdict.followers, activities, found.edges


def test_texts_are_only_read_into_texts() -> None:
    """In the rules a field for people is only read inside a string, or by a function that shortens it for one."""
    names = {name for names in TEXTS.values() for name in names} - {"text", "name", "path", "peer"}
    found = []
    for path in sorted(Path(rules.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        allowed: set[int] = set()
        for each in ast.walk(tree):
            is_short = isinstance(each, ast.Call) and getattr(each.func, "id", "") == "short"
            if isinstance(each, ast.JoinedStr) or is_short:
                allowed |= {id(inner) for inner in ast.walk(each)}
            elif isinstance(each, ast.IfExp):  # `f"... {end.kept_by}" if end.kept_by else ""`
                allowed.add(id(each.test))
            elif isinstance(each, ast.BoolOp):
                allowed |= {id(part) for part in each.values}
        found += [
            f"{path.name}:{each.lineno} {each.attr}"
            for each in ast.walk(tree)
            if isinstance(each, ast.Attribute) and each.attr in names and id(each) not in allowed
        ]
    assert found == []


# -- fragments -------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(NODES)
def test_fragment_of_any_evidence_is_judged_as_the_evidence(found: E.NodeEvidence) -> None:
    fragment = json.loads(json.dumps({"schema": SCHEMA, "node": encoded(found)}))

    assert judge_fragments([fragment]) == rules.judge(Case((found,)))
    assert judge(Case((unpacked(packed(found)),))).kind in KINDS


FRAME = {"function": "f", "file": "/u/t.py", "line": 4}
LIVES = {
    **{"rank": 0, "local_rank": 0, "pid": 100, "node": "a", "stacks_from": "the rank itself"},
    "board": {"connected": True, "heartbeats": 6, "step": 6, "silent": 31.0, "age": 100.0},
    "process": {"state": "S", "system_call": "futex", "sampled_over": 0.05},
    "stacks": [{"name": "M", "main": True, "frames": [FRAME]}],
    "collectives": [{"sequence": 1, "operation": "send 0->1", "group": "a", "state": "started", "ago": 3.0}],
}
HAS_ENDED = {
    **{"rank": 1, "local_rank": 1, "pid": 101, "node": "a", "last_lines": ["Connection refused"]},
    "exit": {"status": -9, "meaning": "killed by signal 9", "ago": 1.0},
    "raised": {"type": "RuntimeError", "message": "timed out", "ago": 1.0, "worker": 3},
}
NOTES = ["Killed process 88 (python)"]
OLD: dict[str, Any] = {"node": "a", "trigger": "hang", "notes": NOTES, "ranks": [LIVES, HAS_ENDED]}
"""Schema 1, with a value in each part that has one."""


@given(st.data())
def test_fragment_with_garbage_is_refused_or_judged(data: st.DataObject) -> None:
    """One value anywhere in a good fragment becomes any other JSON value."""
    schema = data.draw(st.sampled_from([1, SCHEMA]))
    good: Any = OLD if schema == 1 else encoded(node_of({"schema": 1, "node": OLD}))
    fragment: Any = {"schema": schema, "node": json.loads(json.dumps(good))}
    at, key = data.draw(st.sampled_from(list(_places(fragment))))
    at[key] = data.draw(JSON)

    try:
        accepted = node_of(fragment)
    except ValueError:
        return
    assert judge_fragments([fragment]).verdict.kind in KINDS
    assert rules.judge(Case((accepted,))).verdict.kind in KINDS


def _places(value: Any) -> Any:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(parts):
        yield value, key
        yield from _places(part)


@given(st.dictionaries(st.text(max_size=5) | st.sampled_from(["node", "schema", "ranks", "nodes"]), JSON))
def test_garbage_is_refused_with_a_value_error(garbage: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        node_of(garbage)


@pytest.mark.parametrize("garbage", [None, 3, [], "{}", b"x", [{}]])
def test_no_object_at_all_is_refused_with_a_value_error(garbage: Any) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        node_of(garbage)


# -- orders, numbers, sizes ------------------------------------------------------------------------------------


@given(st.lists(NODES, min_size=2, max_size=3), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(nodes: list[E.NodeEvidence], random: object) -> None:
    numbered = [_numbered(one, at) for at, one in enumerate(nodes)]
    shuffled = list(numbered)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert judge(Case(tuple(numbered))) == judge(Case(tuple(shuffled)))


CULPRITS = st.sampled_from(["sleep", "queue", "dataset", "http", "torch_save", "child", "flock", "importing"])
WAITS = st.sampled_from(["all_reduce", "barrier", "backward", "init"])


@given(st.integers(2, 8), CULPRITS, WAITS, st.data())
def test_the_one_outside_is_named_whoever_it_is_and_whoever_passed_the_limit(
    world: int, where: str, wait: str, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(0, world - 1))
    accused = data.draw(st.integers(0, world - 1))
    ranks = [rank(number, where if number == culprit else wait) for number in range(world)]
    half = data.draw(st.integers(1, world - 1))
    nodes = [
        node(*ranks[:half], nodes=2, world_size=world, accused=accused),
        node(*ranks[half:], name="b", node_rank=1, nodes=2, world_size=world, trigger=E.ELSEWHERE),
    ]
    verdict = judge(Case(tuple(nodes)))

    assert (verdict.rank, verdict.confidence) == (culprit, MEDIUM if where in ("queue", "http") else HIGH)
    assert verdict.node == ("a" if culprit < half else "b")


PLACES = ["all_reduce", "barrier", "backward", "busy", "dataset", "loader", "torch_save", "lock", "sleep", ""]
SECTIONS = ["", "step", "data_loading", "validation", "checkpointing"]


def healthy(number: int, rng: random.Random) -> E.RankEvidence:
    """A rank at any moment of its healthy life, whose board moves."""
    where, section = rng.choice(PLACES), rng.choice(SECTIONS)
    interval = rng.choice([0.01, 0.2, 2.0, 40.0])
    silent = rng.uniform(0.0, interval)
    ago = [silent + interval * rng.uniform(0.9, 1.1) * back for back in range(3, -1, -1)]
    signs = {"events": tuple(E.RingEvent("step", each) for each in ago), "rhythm": 1.1 * interval}
    sections = (E.OpenSection(section, silent),) if section else ()
    facts = board(rng.choice([None, 100, 101]), silent, sections=sections, moved=True, **signs)
    kernel = {
        "cpu": rng.choice([0.0, 0.01, 0.05]),
        "switches": rng.randrange(20),
        "state": rng.choice("SSSRD"),
    }
    return rank(number, where, board=facts, process=process(where, **kernel))


@pytest.mark.parametrize("trigger", [E.DIAGNOSE, E.EARLY, E.HANG])
def test_ranks_whose_boards_move_are_never_accused(trigger: str) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        ranks = [healthy(number, rng) for number in range(rng.randint(1, 8))]
        verdict = judge(case(*ranks, trigger=trigger))
        assert verdict.rank is None and verdict.kind == "slow", (seed, verdict)


def large_job(culprit: int) -> Case:
    """2,048 nodes: the 8 ranks of each are a tensor group, and each replica is on all nodes. One rank sleeps."""
    nodes = []
    for at in range(2048):
        local, found = range(8 * at, 8 * at + 8), []
        team = {"group": f"tp{at}", "members": tuple(local), "backend": "nccl"}
        for number in local:
            line = {**team, "group": f"dp{number % 8}", "members": tuple(range(number % 8, 16384, 8))}
            done = [entry(40, state="completed", ago=40.0, **group) for group in (team, line)]
            waits = [entry(41, state="started", **(team if culprit in local else line))]
            where = "sleep" if number == culprit else "busy"
            found.append(rank(number, where, collectives=(*done, *([] if number == culprit else waits))))
        more: dict[str, Any] = {} if at == 0 else {"accused": None, "trigger": E.ELSEWHERE}
        more |= {"nodes": 2048, "world_size": 16384, "node_rank": at}
        nodes.append(node(*found, name=f"n{at}", **{"accused": 0, **more}))
    return Case(tuple(nodes))


@pytest.mark.variant
def test_sixteen_thousand_ranks_are_judged_in_seconds() -> None:
    """The limit includes making the evidence, and is generous for a busy machine."""
    began = time.process_time()
    verdict = judge(large_job(9999))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (9999, "user_code", HIGH)
    assert time.process_time() - began < 30.0


@pytest.mark.variant
def test_sixteen_thousand_ranks_that_all_wait_in_groups_of_eight() -> None:
    ranks = []
    for n in range(16384):
        team = {"group": f"tp{n // 8}", "members": tuple(range(n // 8 * 8, n // 8 * 8 + 8))}
        ranks.append(rank(n, collectives=(entry(900, sizes="[[8]]" if n == 77 else "[[4]]", **team),)))
    began = time.process_time()

    assert judge(case(*ranks)).rank == 77
    assert time.process_time() - began < 10.0


def all_waiting_for_each_other(ranks: int) -> Case:
    """Half of them in one group, half in another; each group has all."""
    members = tuple(range(ranks))
    found = []
    for number in members:
        group, other = ("a", "b") if number % 2 else ("b", "a")
        begun = entry(8, "nccl:all_reduce", group=group, members=members, backend="nccl")
        done = replace(begun, sequence=7, group=other, state="completed", ago=50.0)
        found.append(rank(number, collectives=(begun, done)))
    return case(*found)


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (case(*(rank(number, "init") for number in range(4096))), "startup"),
        (case(*(raised(number, "ValueError", "x") for number in range(4096))), "exception"),
        (all_waiting_for_each_other(4096), "mismatched_collective"),
    ],
    ids=["all start", "all raise", "all wait for each other"],
)
def test_many_ranks_that_do_the_same_take_no_longer_for_each_other(job: Case, kind: str) -> None:
    began = time.process_time()
    verdict = judge(job)

    assert (verdict.rank, verdict.kind) == (None, kind)
    assert time.process_time() - began < 10.0


def test_a_sentence_is_one_short_line_whatever_the_names() -> None:
    long_name = "x" * 5000 + "\n"
    stack = (E.Thread("MainThread", (E.Frame(long_name, long_name + ".py", 1),), main=True),)
    verdict = judge(case(rank(0), rank(1, stacks=stack, process=process("sleep"), board=board())))

    assert verdict.rank == 1 and len(verdict.sentence) <= 300 and "\n" not in verdict.sentence


# -- evidence that is packed for the store of the job ----------------------------------------------------------


def of_two_nodes(first: E.RankEvidence, second: E.RankEvidence, trigger: str) -> Case:
    """A rank on each of two nodes, the evidence of the second one packed."""
    more: dict[str, Any] = {"nodes": 2, "world_size": 2}
    whole = node(second, name="b", node_rank=1, trigger=trigger, **more)
    return Case((node(first, trigger=E.HANG, **more), unpacked(packed(whole))))


def test_packed_evidence_of_a_deep_stack_gives_the_same_verdict() -> None:
    """A data loader below fifteen calls of a library."""
    calls = [E.Frame("recv", "/usr/lib/python3.11/socket.py", 700)]
    calls += [E.Frame(f"f{number}", f"{INSTALLED}datasets/x.py", number) for number in range(14)]
    stack = (*calls, *frames(STACKS["dataset"]))
    loads = rank(1, "http", stacks=(E.Thread("MainThread", stack, main=True),))
    verdict = judge(of_two_nodes(rank(0), loads, E.ELSEWHERE))
    assert (verdict.rank, verdict.kind) == (1, "data_loading")


def test_packed_evidence_keeps_the_group_that_waits() -> None:
    entries = [entry(9, state="started", ago=21.0, group="dp", backend="nccl")]
    entries += [entry(n, state="completed", ago=31.0 - n, group="tp", backend="nccl") for n in range(1, 6)]
    (found,) = unpacked(packed(node(rank(0, collectives=tuple(entries))))).ranks
    assert {each.group for each in found.collectives} == {"dp", "tp"}


def test_packed_evidence_keeps_the_rhythm() -> None:
    """A rank whose signs of life are ten seconds apart is alive after five, on another node too."""
    slow = board(silent=5.0, rhythm=10.0)
    ranks = [rank(number, "sleep", board=slow) for number in range(2)]
    found = of_two_nodes(ranks[0], ranks[1], E.DIAGNOSE)
    asked = replace(found.nodes[0], trigger=E.DIAGNOSE, accused=None)
    assert judge(Case((asked, found.nodes[1]))).kind == "slow"


def test_packed_evidence_of_a_large_job_is_read() -> None:
    entries = [entry(n, ago=1.0, members=tuple(range(16_000)), group=f"g{n % 2}") for n in range(16)]
    ranks = [rank(number, "busy", collectives=tuple(entries)) for number in range(16)]
    assert len(unpacked(packed(node(*ranks))).ranks) == 16


def test_packed_evidence_of_nested_json_is_a_value_error() -> None:
    text = base64.b64encode(zlib.compress(b"[" * 100_000)).decode()
    with pytest.raises(ValueError, match="evidence"):
        unpacked(text)


# -- the judge on simulated jobs of which the truth is known


SEEDS = range(250)
HEALTHY_STEPS = 200


@cache
def judged() -> tuple[tuple[int, Verdict, Truth], ...]:
    """All jobs of these seeds whose fault is possible."""
    made = ((seed, simulated(seed)) for seed in SEEDS)
    return tuple((seed, rules.judge(found[0]).verdict, found[1]) for seed, found in made if found)


def test_simulation_of_all_seeds_has_every_fault() -> None:
    assert {truth.fault for _, _, truth in judged()} == set(simulated_jobs.KINDS)


def test_simulation_of_one_seed_is_repeatable() -> None:
    assert simulated(11) == simulated(11)


def test_judge_with_complete_evidence_finds_the_culprit() -> None:
    complete = [each for each in judged() if each[2].is_complete and each[2].is_determined]
    outcomes = Counter(outcome(verdict, truth) for _, verdict, truth in complete)
    right = sum(verdict.kind in truth.kinds for _, verdict, truth in complete)

    assert len(complete) > 100
    assert outcomes["found"] >= 0.95 * len(complete), outcomes
    assert right >= 0.9 * len(complete)


def test_judge_is_never_wrong_with_high_confidence() -> None:
    assert [each for each in judged() if outcome(each[1], each[2]) == f"wrong {HIGH}"] == []


def test_judge_of_healthy_steps_accuses_no_rank() -> None:
    done, seed = 0, 0
    while done < HEALTHY_STEPS:
        for found, steps in simulated_jobs.healthy(seed):
            verdict = rules.judge(found).verdict
            assert verdict.rank is None or verdict.confidence == LOW, (seed, verdict)
            done += steps
        seed += 1
