"""What a person does next: a text for each kind of verdict, with the facts of the incident filled in. Pure.

Its part before `|` is the most important step, and can stand alone: it is in the first line of the report.
Does not cover: whether the verdict is right. With a low confidence the evidence comes first.
"""

from __future__ import annotations

import re
import signal
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..evidence import AT_EXIT, DIAGNOSE, NodeFaultKind, Process, RankEvidence, Target
from ..rules.places import is_own
from ..rules.sentence import busy_worker
from .wording import call, ended, operation, visible

if TYPE_CHECKING:
    from .text import IncidentView

NEXT_STEPS = MappingProxyType(
    {
        "exception": "Fix the error in {place}|. If that is a library's code, file a bug there with the traceback.",
        "exit": "Find what ends {rank} with {end}|: its last stderr output, sys.exit(), os._exit().",
        "ended": "Find what ends {rank}|: its last stderr output, sys.exit(), os._exit().",
        "early_exit": "Find why {rank} ends before the others|: less data, or a condition that only {rank} meets.",
        "signal": "Open {core} in a debugger|. If it repeats on this node only, drain the node.",
        "file_size": "Raise the limit of file sizes of {rank} on {node}|: ulimit -f.",
        "killed": "Find who sent the signal to {rank} on {node}|: a person, the scheduler, or a memory limit.",
        "out_of_memory": "Lower the memory use of {rank}| (batch size, data-loader workers), "
        "or raise the limit on {node}.",
        "restore": "Lower the memory that {rank} needs before its first step|, or raise the limit on {node}. "
        "A checkpoint that is loaded beside the weights needs their memory twice: torch.load(..., mmap=True) does not.",
        "stopped": "Find what stopped process {pid} on {node}|: a signal (SIGSTOP), a debugger, or the scheduler.",
        "uninterruptible": "Check {storage} on {node}|: a disk, a file server or a driver does not answer. "
        "If it stays so, drain {node}.",
        "data_loading": "Check {storage} on {node}|, and the data loader at {place}{worker}.",
        "checkpoint_io": "Check {storage} on {node}|: free space, quota, the file server.",
        "lock": "Find the owner of the lock that {rank} waits for at {place}{holder}|: "
        "the stacks of the other threads show it.",
        "gil": "Find the native code that keeps the GIL|, called from {place}, and file a bug against its library.",
        "user_code": "Check {place}|: {rank} is there and not in {operation}.",
        "all_in_user_code": "Check {place}|: all ranks are there, and none is in a collective.",
        "storage": "Check {storage} on {node}|: {rank} waits for it at {place}.",
        "child": "Check the child process{holder} that {rank} waits for at {place}|.",
        "network": "Check {peer}|, which {rank} waits for at {place}, and give that call a timeout.",
        "pair": "Test the link between these two nodes|, and check the network and the kernel log of both.",
        "startup": "Check the address|, the port and the world size of the job, and {place} of {rank}.",
        "shutdown": "Check what {rank} waits for at its exit|: threads, child processes, destroy_process_group().",
        "at_exit": "Check what {rank} waits for at its exit|: threads, child processes, destroy_process_group(). "
        "--ft-finished-timeout ends processes that stay after their script.",
        "mismatched_collective": "Compare the collectives of {rank} with those of the other ranks|: "
        "same order, same sizes. It is at {place}.",
        "missing_collective": "Find why {rank} skips {operation}|: a condition, less data, or another process group.",
        "behind": "Run `holdfast diagnose` when it repeats|: stacks show why {rank} is behind.",
        "elsewhere": "Check the nodes without a report|: are they up, and can they reach the rendezvous?",
        "node_lost": "Drain {node}|, and check its power, its kernel log and its network.",
        "slow": "Raise the timeout{setting}|, or find why all ranks became slow.",
        "healthy": "None|: no rank passed a timeout.",
        "no_rank": "Find out why {reason}|: no rank had failed. The kernel log of {node} names what it killed.",
        "unknown": "Run `holdfast diagnose PID` when it repeats|. If all wait in one collective, check the network.",
    }
)
"""What a person does next, by kind of verdict (and of special cases); the most important step ends at `|`."""

SHORT = 90
"""Characters of the short step."""

_NODE_FAULTS = (NodeFaultKind.GPU, NodeFaultKind.HARDWARE)
"""Of the culprit's node: it is drained as well. `GPU_BEFORE` may be of an earlier job."""

_SETTINGS = MappingProxyType(
    {
        "initial_heartbeat": " (--ft-initial-rank-heartbeat-timeout)",
        "heartbeat": " (--ft-rank-heartbeat-timeout)",
        "section": " (--ft-rank-section-timeouts)",
        "out_of_section": " (--ft-rank-out-of-section-timeout)",
    }
)


def short_step(view: IncidentView) -> str:
    """The most important step: `check /mnt/data/part-7 on node gpu-12`; empty where there is none."""
    kind, facts, fault = _step(view)
    step = f"Drain {facts['node']}" if fault else NEXT_STEPS[kind].partition("|")[0].format(**facts)
    return "" if kind == "healthy" else visible(step[:1].lower() + step[1:], SHORT)


def next_step(view: IncidentView) -> str:
    """The text of the table, with the facts of the culprit filled in."""
    kind, facts, fault = _step(view)
    drain = f"Drain {facts['node']}, which reports a fault ({fault}). " if fault else ""
    return drain + NEXT_STEPS[kind].replace("|", "").format(**facts)


def _step(view: IncidentView) -> tuple[str, dict[str, str], str]:
    """The key of the table, the facts, and the fault for which the culprit's node is drained."""
    verdict, rank = view.verdict, view.culprit
    end = rank.exit if rank else None
    facts = {**_facts(view), "rank": "each rank" if verdict.rank is None else f"rank {verdict.rank}"}
    kind: str = verdict.kind
    if kind == "signal" and end and end.status == -signal.SIGXFSZ:
        kind = "file_size"
    elif kind == "signal" and end and not end.core_dump and -end.status in (2, 9, 15):
        kind = "killed"
    elif kind == "exit" and (end is None or end.asked):  # the launcher's own signal came later
        kind = "ended"
    elif kind == "shutdown" and view.triggers == {AT_EXIT}:
        kind = "at_exit"
    elif kind == "out_of_memory" and rank and rank.board and rank.board.is_before_first_step:
        kind = "restore"
    elif kind == "user_code" and facts["file"]:
        kind = "storage"
    elif kind == "user_code" and view.alike and not any(a.waits_for_peers for a in view.activities.values()):
        kind = "all_in_user_code"
    elif verdict.pair:
        kind = "pair"
    elif kind == "slow" and not any(rank.passed for rank in view.case.ranks) and view.triggers == {DIAGNOSE}:
        kind = "healthy"
    elif kind == "unknown" and facts["reason"] and not any(map(_has_failed, view.case.ranks)):
        kind = "no_rank"
    faults = [fault for node in view.case.nodes if node.node == verdict.node for fault in node.faults]
    fault = next((fault for fault in faults if verdict.node and fault.kind in _NODE_FAULTS), None)
    return kind, facts, visible(fault.text, 120) if fault else ""


def _has_failed(rank: RankEvidence) -> bool:
    """Whether it passed a timeout, raised, or ended by itself."""
    return bool(rank.passed or rank.raised or (rank.exit and rank.exit.status and not rank.exit.asked))


def _facts(view: IncidentView) -> dict[str, str]:
    rank, activity = view.culprit, view.activity
    frames = rank.raised.frames if rank and rank.raised else ()
    failed_at = next((call(frame) for frame in (*filter(is_own, frames), *frames)), "")
    place = failed_at or (visible(activity.place, 100) if activity else "")
    process = rank.process if rank else None
    target = process.system_call if process else None
    file = target.path if target and target.target is Target.FILE else ""
    network = (
        re.sub(r" \([^)]*\)$", "", process.network_files[0]) if process and process.network_files else ""
    )
    awaited = [edge.waiters[0] for edge in view.edges if view.verdict.rank in edge.awaited and edge.waiters]
    waiter = next((view.activities[number] for number in awaited if number in view.activities), None)
    limit = next((rank.passed for rank in view.case.ranks if rank.passed), None)
    nodes = {view.ranks[number].node for number in view.alike if number in view.ranks}
    node = view.verdict.node or (nodes.pop() if len(nodes) == 1 else "")
    core = visible(rank.exit.core_dump, 100) if rank and rank.exit else ""
    return {
        "reason": next((visible(node.reason, 120) for node in view.case.nodes if node.reason), ""),
        "node": f"node {visible(node, 60)}" if node else "the node",
        "pid": str(rank.pid) if rank else "of the rank",
        "place": place or "its code",
        "end": ended(rank.exit) if rank and rank.exit else "this exit code",
        "core": f"the core dump ({core})" if core else "a core dump (allow it: ulimit -c unlimited)",
        "file": file,
        "storage": visible(file or network, 100) or "the storage",
        "peer": visible(target.peer, 60) if target and target.peer else "the service",
        "holder": f" (pid {target.pid})" if target and target.pid else "",
        "worker": _worker(process),
        "operation": operation(waiter) if waiter else "the collective of the others",
        "setting": _SETTINGS.get(limit.reason, "") if limit else "",
    }


def _worker(process: Process | None) -> str:
    """` (its worker 5001 is in data/tokens.py:88 __getitem__())`, of a busy one whose stack is known."""
    if not (worker := busy_worker(process)):
        return ""
    frame = next(filter(is_own, worker.frames), worker.frames[0])
    return f" (its worker {worker.pid} is in {call(frame)})"
