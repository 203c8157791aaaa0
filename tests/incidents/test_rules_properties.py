"""Whatever the evidence, `judge` gives a verdict on a rank of the case or nobody, the same for every order of nodes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from holdfast.incidents import evidence as E
from holdfast.incidents.rules import judge
from holdfast.incidents.verdict import HIGH
from tests.incidents.cases import STACKS, Case, board, case, entry, frames, node, process, rank
from tests.incidents.test_rules_crash import LATE, LOST

_WORDS = """
data checkpointing gloo:all_reduce scheduled completed faulthandler the_rank_itself GIL node_b_is_lost 1_oom_kill
RuntimeError MemoryError futex read_/x S D T Z gone R flock_/l_(held_by_pid_3) op.preamble.length
"""
WORDS = st.sampled_from(
    ["", LOST, LATE, "rank 1 failed to pass monitoredBarrier", "\n\x00ß"]
) | st.sampled_from([word.replace("_", " ") if word.count("_") > 1 else word for word in _WORDS.split()])
FRAMES = st.sampled_from([frames(text) for text in STACKS.values()])
SECONDS = st.sampled_from([-1.0, 0.0, 0.01, 0.5, 3.0, 31.0, 1e9])


def some(kind: type) -> SearchStrategy[object]:
    """Any value of one of the evidence's dataclasses."""
    fields = {name: of(hint) for name, hint in get_type_hints(kind).items()}
    if kind is E.Thread:
        fields["frames"] = FRAMES
    if kind in (E.NodeEvidence, E.RankEvidence):
        fields |= (
            {"accused": st.none() | st.integers(-1, 4)}
            if kind is E.NodeEvidence
            else {"rank": st.integers(0, 4)}
        )
    if kind is E.NodeEvidence:
        fields["trigger"] = st.sampled_from([E.HANG, E.CRASH, E.ELSEWHERE, E.EARLY, E.DIAGNOSE])
    return st.builds(kind, **fields)


def of(hint: object) -> SearchStrategy[object]:
    parts = getattr(hint, "__args__", ())
    if getattr(hint, "__origin__", None) is tuple:
        return st.lists(of(parts[0]), max_size=3).map(tuple)
    if parts:
        return st.none() | of(parts[0])
    plain = {str: WORDS, int: st.integers(-15, 6), float: SECONDS, bool: st.booleans()}
    return plain[hint] if hint in plain else st.deferred(lambda: some(hint))  # type: ignore[index,arg-type]


CASES = st.lists(some(E.NodeEvidence), max_size=3).map(lambda nodes: Case(tuple(nodes)))  # type: ignore[arg-type]


def _numbered(one: E.NodeEvidence, at: int) -> E.NodeEvidence:
    """With each rank's number and each node's once, as in every job."""
    ranks = tuple(
        replace(each, rank=10 * at + number, pid=100 * at + number) for number, each in enumerate(one.ranks)
    )
    return replace(one, node=f"n{at}", node_rank=at, ranks=ranks)


@settings(max_examples=150)
@given(CASES)
def test_it_never_raises_and_names_a_rank_of_the_case_or_nobody(found: Case) -> None:
    verdict = judge(found)

    numbers = {each.rank for each in found.ranks}
    assert verdict.rank is None or verdict.rank in numbers
    assert verdict.rank not in verdict.followers and set(verdict.followers) <= numbers
    assert 0 < len(verdict.sentence) <= 300 and "\n" not in verdict.sentence


@settings(max_examples=80)
@given(st.lists(some(E.NodeEvidence), min_size=2, max_size=3), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(nodes: list[E.NodeEvidence], random: object) -> None:
    numbered = [_numbered(one, at) for at, one in enumerate(nodes)]
    shuffled = list(numbered)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert judge(Case(tuple(numbered))) == judge(Case(tuple(shuffled)))


CULPRITS = ["sleep", "queue", "dataset", "http", "torch_save", "child", "flock", "importing"]


@given(
    st.integers(2, 8),
    st.sampled_from(CULPRITS),
    st.sampled_from(["all_reduce", "barrier", "backward", "init"]),
    st.data(),
)
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

    assert (verdict.rank, verdict.confidence) == (culprit, HIGH)


def test_sixteen_thousand_ranks_are_judged_in_seconds() -> None:
    members = tuple(range(16384))
    nodes = []
    for at in range(2048):
        numbers = range(8 * at, 8 * at + 8)
        past = tuple(entry(900 + back, ago=40.0 - back, members=members) for back in range(10))
        ranks = [rank(n, "dataset" if n == 9999 else "backward", collectives=past) for n in numbers]
        nodes.append(node(*ranks, name=f"n{at}", node_rank=at, nodes=2048, world_size=16384, accused=None))
    began = time.process_time()
    verdict = judge(Case(tuple(nodes)))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (9999, "data_loading", HIGH)
    assert time.process_time() - began < 2.0


def test_sixteen_thousand_ranks_that_all_wait() -> None:
    ranks = [rank(n, collectives=(entry(900, sizes="[[8]]" if n == 77 else "[[4]]"),)) for n in range(16384)]
    began = time.process_time()

    assert judge(case(*ranks)).rank == 77
    assert time.process_time() - began < 2.0


def test_a_sentence_is_one_short_line_whatever_the_names() -> None:
    long_name = "x" * 5000 + "\n"
    stack = (E.Thread("MainThread", (E.Frame(long_name, long_name + ".py", 1),), main=True),)
    verdict = judge(case(rank(0), rank(1, stacks=stack, process=process("sleep"), board=board())))

    assert verdict.rank == 1 and len(verdict.sentence) <= 300 and "\n" not in verdict.sentence
