"""The evidence of a hang of 16,384 ranks on 2,048 nodes, for tests of the rules."""

from __future__ import annotations

from typing import Any

from holdfast.incidents.evidence import Case
from holdfast.incidents.wire import node_of, runs

RANKS, LOCAL, PIPELINE = 16384, 8, 16
"""Tensor parallel within a node, 16 pipeline stages, 128 replicas."""
CULPRIT = 9999


def fragment(node: int) -> dict[str, Any]:
    """The evidence of one node as it comes from JSON: each rank in a world, a dp, a tp and a pp group."""
    return {"schema": 2, "node": _node(node)}


def decoded_job() -> Case:
    """The evidence of all nodes. `CULPRIT` is to blame."""
    return Case(tuple(node_of(fragment(node)) for node in range(RANKS // LOCAL)))


def _node(node: int) -> dict[str, Any]:
    numbers = range(LOCAL * node, LOCAL * node + LOCAL)
    return {
        "node": f"n{node}",
        "trigger": "hang" if node == 0 else "elsewhere",
        "node_rank": node,
        "nodes": RANKS // LOCAL,
        "world_size": RANKS,
        "at": 1000.0,
        "cycle_start": 900.0,
        "accused": 0 if node == 0 else None,
        "ranks": [_rank(number, f"n{node}") for number in numbers],
    }


def _rank(number: int, node: str) -> dict[str, Any]:
    is_culprit = number == CULPRIT
    stack = [
        {"function": "augment" if is_culprit else "train_step", "file": "/home/me/job/train.py", "line": 40},
        *({"function": f"call{n}", "file": "/home/me/job/train.py", "line": n} for n in range(12)),
    ]
    call = {"name": "clock_nanosleep"} if is_culprit else {}
    return {
        "rank": number,
        "local_rank": number % LOCAL,
        "pid": 4000 + number,
        "node": node,
        "board": {
            "connected": True,
            "heartbeats": 10,
            "step": 10,
            "silent": 31.0,
            "age": 90.0,
            "rhythm": 0.5,
        },
        "process": {"state": "S", "system_call": call, "sampled_over": 0.05}
        if is_culprit
        else {"state": "R", "cpu": 0.05, "sampled_over": 0.05},
        "stacks": [{"name": "MainThread", "main": True, "frames": stack}],
        "stacks_from": "rank",
        "collectives": _collectives(number),
    }


def _collectives(number: int) -> list[dict[str, Any]]:
    """Its tensor group waits for the culprit; its pipeline and its replicas wait for that group."""
    block, tensor = LOCAL * PIPELINE, number // LOCAL
    stage, replica = tensor % PIPELINE, number // block
    line = range(block * replica + number % LOCAL, block * (replica + 1), LOCAL)
    name = f"{replica}-{number % LOCAL}"
    of_world = _entries("default_pg", range(RANKS))
    of_dp = _entries(f"dp{number % block}", range(number % block, RANKS, block))
    of_tp = _entries(f"tp{tensor}", range(LOCAL * tensor, LOCAL * (tensor + 1)))
    of_pp = [
        {**each, "p2p": True, "operation": f"recv {stage}<-{stage - 1}"}
        for each in _entries(f"pp{name}", line)
    ]
    for each in of_pp:
        each["peer"] = line[stage - 1]
    if number == CULPRIT:
        waits: list[dict[str, Any]] = []
    elif tensor == CULPRIT // LOCAL:
        waits = of_tp
    else:
        waits = of_pp if stage and replica == CULPRIT // block else of_dp
    pending = [{**each, "sequence": 42, "state": "started", "ago": 30.0} for each in waits[:1]]
    return [*of_world, *of_dp, *of_tp, *(of_pp if stage else []), *pending]


def _entries(group: str, members: range) -> list[dict[str, Any]]:
    entry = {"group": group, "members": runs(tuple(members)), "operation": "all_reduce", "backend": "nccl"}
    entry |= {"sizes": "[[1024]]", "dtype": "Float", "state": "completed"}
    return [{**entry, "sequence": 40 + n, "ago": 40.0 - n} for n in range(2)]
