"""Fragments of evidence as a user would write them by hand: dicts of schema 1. Plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Fragment = dict[str, Any]
C10D = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
PACKAGES = "/usr/lib/python3/dist-packages"
TRAIN = "/home/u/train.py"


def frames(*calls: tuple[str, str, int]) -> list[Fragment]:
    """A stack, the innermost call first: (function, file, line)."""
    return [{"function": function, "file": file, "line": line} for function, file, line in calls]


def thread(*calls: tuple[str, str, int], name: str = "MainThread", main: bool = True) -> Fragment:
    return {"name": name, "main": main, "frames": frames(*calls)}


def collective(sequence: int, state: str = "completed", ago: float = 30.0, **more: Any) -> Fragment:
    entry = {"operation": "all_reduce", "group": "default_pg", "sizes": "[[1024]]", "dtype": "float32"}
    return {**entry, "sequence": sequence, "state": state, "ago": ago, **more}


def process(call: str = "", cpu: float = 0.0, state: str = "", **more: Any) -> Fragment:
    """`cpu`: seconds of 0.05; a rank with a system call sleeps in it."""
    state = state or ("R" if cpu else "S")
    main = {"tid": 1, "name": "python", "state": state, "cpu": cpu}
    return {"state": state, "system_call": call, "cpu": cpu, "sampled_over": 0.05, "threads": [main], **more}


def board(step: int | None = 6, silent: float = 31.0, **more: Any) -> Fragment:
    return {"connected": True, "heartbeats": 6, "step": step, "silent": silent, "age": 100.0, **more}


def rank(number: int, *stack: tuple[str, str, int], node: str = "a", **more: Any) -> Fragment:
    """One that is alive, asked by its helper thread."""
    value: Fragment = {
        "rank": number,
        "local_rank": number,
        "pid": 100 + number,
        "node": node,
        "board": board(),
        "process": process("futex"),
        "stacks": [thread(*stack)] if stack else [],
        "stacks_from": "the rank itself" if stack else "",
    }
    return {**value, **more}


def dead(
    number: int, status: int, ago: float = 1.0, *, node: str = "a", lines: Sequence[str] = (), **more: Any
) -> Fragment:
    """One that has ended."""
    end = {
        "status": status,
        "meaning": f"exit code {status}" if status >= 0 else f"killed by signal {-status}",
    }
    value: Fragment = {"rank": number, "local_rank": number, "pid": 100 + number, "node": node}
    return {**value, "exit": {**end, "ago": ago}, "last_lines": list(lines), **more}


def raised(type_: str, message: str = "", ago: float = 1.0, **more: Any) -> Fragment:
    return {"type": type_, "message": message, "ago": ago, **more}


def node(ranks: Iterable[Fragment], trigger: str = "hang", *, name: str = "a", **more: Any) -> Fragment:
    found = list(ranks)
    accused = next((each["rank"] for each in found if "passed" in each), None)
    value: Fragment = {"node": name, "trigger": trigger, "at": 1e9, "mono": 1e3, "ranks": found}
    return {"schema": 1, "node": {**value, "world_size": len(found), "accused": accused, **more}}


LIMIT: Fragment = {"reason": "heartbeat", "waited": 31.2, "limit": 30.0}
LOST: Fragment = raised(
    "RuntimeError", "[/pytorch/gloo/pair.cc:571] Connection closed by peer [10.0.0.1]", 0.5
)
IN_ALL_REDUCE = (("all_reduce", C10D, 2500), ("train_step", TRAIN, 40), ("<module>", TRAIN, 80))
SPINS = (("train_step", TRAIN, 40), ("<module>", TRAIN, 80))
"""NCCL: under `loss.item()` the stack ends in the program's own line, and the processor is busy."""
