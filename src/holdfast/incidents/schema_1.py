"""Evidence of schema 1 as schema 2: it had sentences of the capture where there are codes now. Pure.

Nothing else reads schema 1; a record of it has a verdict without activities (`report.store`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from . import classify
from .evidence import Missing, NodeFault, NodeFaultKind, StackSource, SystemCall, Target
from .wire import rhythm

_SOURCES = {
    "the rank itself": StackSource.RANK,
    "faulthandler": StackSource.SIGNAL,
    "py-spy": StackSource.PY_SPY,
}
_REASONS = (
    ("GIL", Missing.NO_ANSWER),
    ("interpreter lock", Missing.NO_ANSWER),
    ("does not answer", Missing.NO_ANSWER),
    ("no Python frame", Missing.NO_PYTHON_FRAME),
    ("no process group and no client", Missing.NO_HELPER),
    ("has no process group", Missing.NO_GROUP),
    ("is stopped", Missing.STOPPED),
    ("process has ended", Missing.ENDED),
    ("process is gone", Missing.ENDED),
    ("not prepared", Missing.NOT_ARMED),
    ("cannot be asked", Missing.NOT_ARMED),
    ("not interrupted", Missing.NOT_REQUESTED),
    ("flight recorder", Missing.NOT_RECORDED),
    ("unavailable for", Missing.NOT_RECORDED),
    ("in time", Missing.TOO_LATE),
    ("signal", Missing.NOT_SIGNALLED),
)


def upgraded(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node's object of schema 1 as one of schema 2. Raises ValueError where it is none."""
    try:
        notes = [str(note) for note in node.get("notes", ())]
        faults = [fault for fault in map(node_fault, notes) if fault]
        texts = {fault.text for fault in faults}
        return {
            **node,
            "notes": [note for note in notes if note not in texts],
            "faults": [asdict(fault) for fault in faults],
            "ranks": [_upgraded_rank(rank) for rank in node.get("ranks", ())],
        }
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"no evidence of schema 1: {error}") from error


def _upgraded_rank(rank: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(rank)
    for name in ("no_stacks", "no_collectives"):
        text = str(rank.get(name, ""))
        found[name] = next(
            (code for words, code in _REASONS if words in text), Missing.FAILED if text else ""
        )
    found["stacks_from"] = _SOURCES.get(str(rank.get("stacks_from", "")), StackSource.NONE)
    found["stderr"] = classify.nature_of_lines([str(line) for line in rank.get("last_lines", ())])
    found["collectives"] = [_upgraded_collective(each) for each in rank.get("collectives", ())]
    if process := rank.get("process"):
        call = process.get("system_call", "")
        call = asdict(system_call(call)) if isinstance(call, str) else call
        found["process"] = {**process, "system_call": call}
    if board := rank.get("board"):
        found["board"] = {
            "rhythm": rhythm([each.get("ago", 0.0) for each in board.get("events", ())]),
            **board,
        }
    if end := rank.get("exit"):
        source = str(end.get("out_of_memory") or "")
        is_counted = bool(source) and "Killed process " not in source
        found["exit"] = {"oom_killed": bool(source), "oom_counted": is_counted, **end}
    if raised := rank.get("raised"):
        type_, message, trace = (str(raised.get(name, "")) for name in ("type", "message", "traceback"))
        lost = raised.get("lost_connection", False) is True
        ago = float(raised.get("ago", 0.0))
        found["raised"] = asdict(classify.raised(type_, message, trace, ago, lost_peer=lost))
    return found


def _upgraded_collective(entry: Mapping[str, Any]) -> dict[str, Any]:
    operation = entry.get("operation", "")
    peer = classify.peer_of(str(operation), list(entry.get("members", ())))
    backend = str(operation).rpartition(":")[0]
    return {"p2p": classify.is_p2p(operation), "peer": peer, "backend": backend, **entry}


_FAULTS = (
    (
        NodeFaultKind.NODE_LOST,
        r"\b(node|host)\b.*\b(lost|gone|vanished|down|unreachable|no longer|not answer)",
    ),
    (NodeFaultKind.OOM_KILL, r"Killed process \d|want of memory|oom.?kill|out of memory|ran out of memory"),
    (NodeFaultKind.GPU, r"\bXid\b|uncorrectable|could not remap|fallen off the bus"),
    (NodeFaultKind.SLOW_GPU, r"runs slower|thermal|throttl|power brake"),
    (NodeFaultKind.HUNG_TASK, r"blocked for more than"),
    (NodeFaultKind.HARDWARE, r"Machine Check|Hardware Error|Uncorrect"),
)
_NO_FAULT = re.compile(r"\b(no|none|cannot|could not be read)\b", re.IGNORECASE)
_KILLED = re.compile(r"Killed process (\d{1,9})")


def node_fault(text: str) -> NodeFault | None:
    """A line of the kernel's log, or a fact about a GPU, as a fault of the node; None where it is none."""
    for kind, pattern in _FAULTS:
        if re.search(pattern, text, re.IGNORECASE):
            if kind is not NodeFaultKind.GPU and _NO_FAULT.search(text):
                return None
            killed = _KILLED.search(text)
            return NodeFault(kind, text, int(killed[1]) if killed else 0)
    return None


_FACTS = re.compile(r"\((to|shared with pid|held by pid) ([^)]*)\)")


def system_call(text: str) -> SystemCall:
    """A system call as schema 1 has it: `recvfrom socket:[1] (to 10.0.0.7:29500)`, `wait4 pid 71`."""
    name, _, rest = text.partition(" ")
    facts: dict[str, str] = dict(_FACTS.findall(rest))
    path = _FACTS.sub("", rest).strip()
    child = path.removeprefix("pid ") if path.startswith("pid ") else ""
    pid = child or facts.get("shared with pid", "") or facts.get("held by pid", "")
    target = classify.target_of(path)
    if child or name in ("wait4", "waitid"):
        target, path = Target.PROCESS, ""
    elif "shared with pid" in facts:
        target = Target.CHILD_PIPE
    elif name in ("flock", "fcntl"):
        target = Target.LOCK
    return SystemCall(name, target, path, facts.get("to", ""), int(pid) if pid.isdecimal() else 0)
