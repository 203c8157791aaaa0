"""Jobs on NCCL with several groups or a pipeline, by hand-made fragments."""

from __future__ import annotations

from typing import Any

from holdfast.incidents import judge


def _entry(operation: str, peer: int, state: str) -> dict[str, Any]:
    return {
        "sequence": 3,
        "operation": operation,
        "group": "default_pg",
        "members": [0, 1, 2],
        "state": state,
        "ago": 30.0,
        "p2p": True,
        "peer": peer,
        "backend": "nccl",
    }


def test_native_wait_with_completed_recorder_is_named_with_medium() -> None:
    """Both neighbours wait for rank 1 by their recorders, and its own has nothing pending: it waits for no peer."""
    busy = {"state": "R", "cpu": 0.05, "sampled_over": 0.05}
    stack = {
        "name": "MainThread",
        "main": True,
        "frames": [{"function": "f", "file": "/app/stage.py", "line": 4}],
    }
    ranks: list[dict[str, Any]] = [
        {"process": busy, "collectives": [_entry("recv 0<-1", 1, "started")]},
        {
            "process": {"state": "S", "system_call": {"name": "futex"}},
            "collectives": [_entry("send 1->2", 2, "completed")],
            "stacks": [stack],
            "stacks_from": "rank",
        },
        {"process": busy, "collectives": [_entry("recv 2<-1", 1, "started")]},
    ]
    named = [
        {"rank": n, "local_rank": n, "pid": 100 + n, "node": "a", **rank} for n, rank in enumerate(ranks)
    ]
    node = {"node": "a", "trigger": "hang", "world_size": 3, "ranks": named}
    verdict = judge([{"schema": 2, "node": node}]).verdict
    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "lock", "medium")


def test_sentence_has_the_sequence_of_the_culprits_group() -> None:
    """Ranks 0 and 1 wait in a group without the culprit, because rank 1 waits for it in the group of all."""

    def wait(group: str, members: list[int], sequence: int) -> dict[str, Any]:
        entry = {"sequence": sequence, "operation": "all_reduce", "group": group, "members": members}
        return {**entry, "state": "started", "ago": 30.0, "backend": "nccl"}

    spins = {"state": "R", "cpu": 0.05, "sampled_over": 0.05}
    frame = {"function": "f", "file": "/app/train.py", "line": 4}
    stacks = [{"name": "MainThread", "main": True, "frames": [frame]}]
    done = {**wait("all", [0, 1, 2], 40), "state": "completed"}
    ranks: list[dict[str, Any]] = [
        {"process": spins, "collectives": [wait("pair", [0, 1], 7)]},
        {"process": spins, "collectives": [wait("all", [0, 1, 2], 41)]},
        {"process": {**spins, "state": "S"}, "collectives": [done], "stacks": stacks, "stacks_from": "rank"},
    ]
    named = [
        {"rank": n, "local_rank": n, "pid": 100 + n, "node": "a", **rank} for n, rank in enumerate(ranks)
    ]
    node = {"node": "a", "trigger": "hang", "world_size": 3, "ranks": named}
    verdict = judge([{"schema": 2, "node": node}]).verdict
    assert verdict.rank == 2
    assert "(sequence 41)" in verdict.sentence
