"""What the evidence says of one rank, a sentence each: how a person can check the verdict. Pure.

Does not cover: what follows from it; the verdict's sentence says that.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..evidence import BoardFacts, Process, RankEvidence
from .grouping import rank_ranges
from .wording import ended, passed, raised, seconds, state, visible


def findings(rank: RankEvidence) -> list[str]:
    """What is known of it, the most telling first."""
    found: list[str] = []
    if rank.raised:
        found.append(f"it raised {raised(rank.raised)}")
    if rank.exit:
        found.append(f"it ended: {ended(rank.exit)}" + (" (it had been told to)" if rank.exit.asked else ""))
        if rank.exit.core_dump:
            found.append(f"core dump: {visible(rank.exit.core_dump, 150)}")
    if rank.passed:
        found.append(f"it passed a limit: {passed(rank.passed)}")
    if rank.process:
        found += _process(rank, rank.process)
    if rank.board:
        found += _board(rank.board)
    found += [f"note: {visible(note)}" for note in rank.notes]
    return found


def _board(board: BoardFacts) -> Iterator[str]:
    if not board.connected and not board.counted:
        yield f"it has not reported to Holdfast yet, {seconds(board.age)} after its start"
        return
    counts = f"{board.heartbeats} heartbeats" if board.heartbeats else "no heartbeat"
    at = f", last step {board.step}" if board.step is not None else ""
    saved = f", {board.checkpoints} checkpoints" if board.checkpoints else ""
    yield f"its last sign of life was {seconds(board.silent)} ago ({counts}{at}{saved})"
    if board.finished:
        yield "it had said that it was finished"
    if board.moved:
        yield "it reported progress while we looked"


def _process(rank: RankEvidence, process: Process) -> Iterator[str]:
    calls = [
        f"waits in system call {visible(process.system_call, 120)}" if process.system_call else "",
        f"kernel function {visible(process.wait_channel, 60)}" if process.wait_channel.strip("0") else "",
    ]
    yield ", ".join(part for part in (state(rank), *calls) if part)
    if process.sampled_over > 0:
        over = seconds(process.sampled_over)
        yield (
            f"it used no processor time within {over}"
            if not process.cpu and not process.switches
            else f"it used {process.cpu:.2f} s of processor time within {over} ({process.switches} switches)"
        )
    if process.kernel_stack:
        yield "in the kernel: " + visible(" < ".join(process.kernel_stack[:6]), 180)
    if process.network_files:
        yield "open on network filesystems: " + visible(", ".join(process.network_files[:4]), 160)
    if process.children:
        yield _children(process)
    if rank.stacks and (holders := [thread.name for thread in rank.stacks if thread.holds_gil]):
        yield f"Python's interpreter lock (GIL) is held by thread {visible(holders[0], 60)}"


def _children(process: Process) -> str:
    known: dict[str, list[int]] = {}
    for child in process.children:
        known.setdefault(
            f"{visible(child.command, 40)} in state {visible(child.state, 5) or '?'}", []
        ).append(child.pid)
    texts = [f"{len(pids)} × {what} (pid {rank_ranges(pids, 3)})" for what, pids in list(known.items())[:3]]
    return "processes below it: " + "; ".join(texts) + (" …" if len(known) > 3 else "")
