"""`suspicions`: what past failures make suspect, as a table of histories."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.incidents.suspicions import Failure, Suspicions, suspicions
from holdfast.incidents.verdict import HIGH, MEDIUM

BUG = "IndexError at train.py:88 step(): index # is out of range"


def crash(node: str, step: int | None, **more: Any) -> Failure:
    return Failure(**{"kind": "signal", "node": node, "confidence": HIGH, "step": step, **more})


def error(node: str, step: int, **more: Any) -> Failure:
    return crash(node, step, **{"kind": "exception", "signature": BUG, **more})


def disk(node: str, step: int) -> Failure:
    return error(node, step, signature="", hardware="OSError: Input/output error", may_be_shared=True)


def nodes(found: Suspicions) -> list[str]:
    return [each.what for each in found.nodes]


def judged(*history: Failure, now: float = 0.0) -> Suspicions:
    return suspicions(history, now)


HISTORIES: dict[str, tuple[list[Failure], list[str]]] = {
    "one crash": ([crash("a", 5)], []),
    "two crashes of one node": ([crash("a", 5), crash("a", 9)], ["a"]),
    "with another between them": ([crash("a", 5), crash("b", 7), crash("a", 9)], ["a"]),
    "with two others between them": ([crash("a", 5), crash("b", 6), crash("c", 7), crash("a", 9)], []),
    "at the same step": ([crash("a", 5), crash("a", 5)], []),
    "at unknown steps": ([crash("a", None), crash("a", None)], ["a"]),
    "not for sure": ([crash("a", 5), crash("a", 9, confidence=MEDIUM)], []),
    "the same exception": ([error("a", 5), error("a", 9)], []),
    "an exception and a crash": ([error("a", 5), crash("a", 9)], []),
    "two other exceptions": ([error("a", 5), error("a", 9, signature="ValueError")], []),
    "crashes at one place": ([crash("a", 5, signature="loss.cu"), crash("a", 9, signature="loss.cu")], []),
    "exceptions from outside of the program": (
        [error("a", 5, signature=""), error("a", 9, signature="")],
        ["a"],
    ),
    "an exception that names hardware": ([error("a", 5, hardware="GPU 3 is lost")], ["a"]),
    "hardware by its text": ([crash("a", 5, hardware="uncorrectable memory error of GPU 3")], ["a"]),
    "hardware by its kind": ([crash("a", 5, kind="uninterruptible")], ["a"]),
    "hardware, but which node is not known": ([crash("a", 5, hardware="a link is down", peers=("b",))], []),
    "two nodes, twice": ([crash("a", 5, peers=("b",)), crash("a", 9, peers=("b",))], []),
    "two nodes accuse each other": ([crash("a", 5, peers=("b",)), crash("b", 9, peers=("a",))], []),
    "one node with two others": ([crash("a", 5, peers=("b",)), crash("c", 9, peers=("a",))], ["a"]),
    "a disk that fails": ([disk("a", 5)], ["a"]),
    "a disk that fails on two nodes": ([disk("a", 5), disk("b", 9), disk("b", 12)], []),
    "no culprit": ([Failure("unknown"), Failure("unknown")], []),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_which_nodes_are_suspect(name: str) -> None:
    history, expected = HISTORIES[name]
    found = judged(*history)
    assert nodes(found) == expected
    assert all(each.what in each.facts for each in found.nodes)


def test_a_suspicion_ends_when_the_others_have_failed_without_it() -> None:
    history = [crash("a", 5), crash("a", 9)]
    assert nodes(judged(*history)) == ["a"]
    found = judged(*history, crash("b", 12, without=("a",)))
    assert nodes(found) == [] and found.times == {"a": 1}


def test_two_nodes_of_one_failure_domain_make_it_suspect() -> None:
    rack = [crash("a", 5, domain="rack 7"), crash("b", 9, domain="rack 7")]
    found = judged(*rack)
    assert [each.what for each in found.domains] == ["rack 7"] and not found.nodes
    assert not judged(rack[0], crash("a", 9, domain="rack 7")).domains
    assert not judged(rack[0], crash("b", 9, domain="rack 8")).domains
    assert not judged(crash("a", 5), crash("b", 9)).domains
    assert not judged(*rack, crash("c", 12, without=("rack 7",))).domains, "the others have failed without it"
    assert judged(*rack, crash("c", 12, without=("a",))).domains
    assert not judged(crash("a", 5, domain="rack 7"), crash("b", 5, domain="rack 7")).domains, "at one step"


def test_a_suspicion_ends_after_an_hour() -> None:
    history = [crash("a", 5, at=0.0), crash("a", 9, at=100.0)]
    assert nodes(judged(*history, now=3699.0)) == ["a"]
    assert nodes(judged(*history, now=3700.0)) == []


def loaded(path: str, attempt: int, **more: Any) -> Failure:
    return crash("a", 100, checkpoint=path, attempt=attempt, **{"took_steps": False, **more})


def test_a_checkpoint_after_which_two_attempts_fail_is_suspect() -> None:
    trained = loaded("step-50", 1, took_steps=True)
    found = judged(trained, loaded("step-100", 1), loaded("step-100", 2))
    (checkpoint,) = found.checkpoints
    assert checkpoint.what == "step-100" and "step-50 was trained from" in checkpoint.facts
    assert not judged(loaded("step-100", 1), loaded("step-100", 1)).checkpoints
    assert not judged(loaded("step-100", 1), loaded("step-100", 2, took_steps=True)).checkpoints
    assert not judged(*(loaded("step-100", each, hardware="GPU 3 is lost") for each in (1, 2))).checkpoints


def test_two_nodes_that_accuse_each_other_are_named_and_stay() -> None:
    found = judged(crash("a", 5, peers=("b",)), crash("b", 9, peers=("a",)))
    assert [each.what for each in found.pairs] == ["a and b"] and not found.nodes


def test_a_kind_that_no_verdict_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no kind of verdict"):
        Failure("sunspots")
