"""The facts of a rank in words, for the text and the page: ranges of ranks, durations, calls, ends. Pure.

What always holds: a text from here is one line, has no character that a terminal acts on, and is bounded.
Does not cover: which facts matter (`text`, `page`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TypeVar

from holdfast.visible import escaped

from ..evidence import (
    BoardFacts,
    Collective,
    Exit,
    Frame,
    PassedLimit,
    Process,
    Raised,
    RankEvidence,
)
from ..rules.sentence import called, rate, seconds, spans_of
from ..verdict import Activity

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
LONGEST = 200
"""Columns of one line at most."""

STATES = MappingProxyType(
    {
        "R": "running",
        "S": "sleeping",
        "D": "disk wait",
        "T": "stopped",
        "t": "stopped by a debugger",
        "Z": "ended, not yet collected",
        "I": "idle",
    }
)
"""The one-letter codes of proc(5)."""


# -- texts and numbers -----------------------------------------------------------------------------------------


def visible(text: object, longest: int = LONGEST) -> str:
    """A text from outside, safe to print and on one line; the middle of a long one is left out."""
    line = escaped(" ".join(str(text)[: 8 * longest].split("\n")).expandtabs(4).replace("\r", ""))
    if len(line) <= longest:
        return line
    half = (longest - 3) // 2
    return f"{line[:half]} … {line[len(line) - half :]}"


def visible_lines(text: str) -> list[str]:
    """The lines of a text from outside that are not blank, each safe to print."""
    return [visible(line.rstrip()) for line in text.splitlines() if line.strip()]


def clock(at: float, form: str = "%H:%M:%S UTC") -> str:
    """`03:09:36 UTC`; empty where the moment is not known."""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime(form) if at > 0 else ""
    except (ValueError, OverflowError, OSError):
        return ""


def grouped(items: Iterable[T], key: Callable[[T], K | None]) -> list[tuple[K, list[T]]]:
    """The items by key, the largest group first; those without a key are left out."""
    found: dict[K, list[T]] = {}
    for item in items:
        if (what := key(item)) is not None:
            found.setdefault(what, []).append(item)
    return sorted(found.items(), key=lambda group: -len(group[1]))  # stable: equal ones in the given order


def rank_ranges(numbers: Iterable[int], most: int = 6) -> str:
    """`0-4, 6-63`; of more than `most` runs the first ones, and how many ranks are left out."""
    runs = spans_of(numbers)
    shown = runs[:most] if len(runs) > most + 1 else runs
    rest = sum(last - first + 1 for first, last in runs[len(shown) :])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in shown)
    return f"{text} and {rest} more" if rest else text


def counted(numbers: Sequence[int], most: int = 6) -> str:
    """`rank 5`, or `63 ranks (0-4, 6-63)`; empty for none."""
    count = len(set(numbers))
    if not count:
        return ""
    return f"rank {numbers[0]}" if count == 1 else f"{count} ranks ({rank_ranges(numbers, most)})"


# -- one rank --------------------------------------------------------------------------------------------------


def call(frame: Frame) -> str:
    """`train/dataset.py:88 read()`; a native one by its name and library."""
    if frame.native:
        library = f" in {visible(frame.file.rsplit('/', 1)[-1], 60)}" if frame.file else ""
        return f"{visible(frame.function, 80)}(){library}"
    return visible(called(frame), 140)


def step(rank: RankEvidence) -> str:
    """`step 4181`; empty where there was none."""
    return f"step {rank.board.step}" if rank.board and rank.board.step is not None else ""


def state(rank: RankEvidence) -> str:
    """`state D (disk wait)`; empty where it is not known."""
    code = rank.process.state if rank.process else ""
    meaning = f" ({STATES[code]})" if code in STATES else ""
    return f"state {visible(code, 20)}{meaning}" if code else ""


def passed(limit: PassedLimit) -> str:
    """`no heartbeat for 31.2 s (timeout 30.0 s)`."""
    what = {
        "initial_heartbeat": "no first heartbeat",
        "heartbeat": "no heartbeat",
        "section": f"section '{visible(limit.section, 60)}' did not end",
        "out_of_section": "outside of all sections",
    }.get(limit.reason, visible(limit.text or limit.reason, 120))
    return f"{what} for {limit.waited:.1f} s (timeout {limit.limit:.1f} s)"


def ended(end: Exit) -> str:
    """How its process ended, with the source where memory was short."""
    words = visible(end.words, 150)
    return f"{words}; out of memory: {visible(end.out_of_memory, 150)}" if end.out_of_memory else words


def raised(error: Raised) -> str:
    """`ValueError: bad batch`."""
    message = visible(error.message, 140)
    return f"{visible(error.type, 60)}: {message}" if message else visible(error.type, 60)


def end_of(rank: RankEvidence) -> str:
    """Its exception, with its exit; or its exit alone. Empty: it runs."""
    asked = " (terminated)" if rank.exit and rank.exit.asked else ""
    end = f"{ended(rank.exit)}{asked}" if rank.exit else ""
    return raised(rank.raised) + (f" ({end})" if end else "") if rank.raised else end


def end_moment(rank: RankEvidence) -> float:
    """When it began to end: seconds before the snapshot, negative after it."""
    return max((found.ago for found in (rank.raised, rank.exit) if found is not None), default=0.0)


def around_snapshot(ago: float) -> str:
    """`0.05 s before the snapshot`, `0.10 s after the snapshot`."""
    return f"{seconds(abs(ago))} {'before' if ago >= 0 else 'after'} the snapshot"


def collective(entry: Collective) -> str:
    """`all_reduce (sequence 8362) of [[1024]] float32 in group default, begun 31 s ago, not completed (started)`."""
    text = f"{visible(entry.operation, 60)} (sequence {entry.sequence})"
    if entry.sizes:
        text += f" of {visible(f'{entry.sizes} {entry.dtype}'.strip(), 80)}"
    if entry.group:
        text += f" in group {visible(entry.group, 40)}"
    is_completed = entry.state == "completed"
    state = "completed" if is_completed else f"not completed ({visible(entry.state, 30)})"
    return f"{text}, begun {seconds(entry.ago)} ago, {state}"


def operation(activity: Activity) -> str:
    """`all_reduce (sequence 8362)`, of a rank that waits for its peers."""
    number = f" (sequence {activity.sequence})" if activity.sequence is not None else ""
    return f"{visible(activity.operation, 60) or 'a collective'}{number}"


def same_collectives(ranks: Iterable[RankEvidence]) -> list[tuple[Collective, list[int]]]:
    """The newest collective of each group, once for the ranks that agree in all that must agree."""
    entries = []
    for rank in ranks:
        newest: dict[str, Collective] = {}
        for entry in rank.collectives:
            if entry.group not in newest or entry.sequence >= newest[entry.group].sequence:
                newest[entry.group] = entry
        entries += [(rank.rank, entry) for entry in newest.values()]

    def agreed(pair: tuple[int, Collective]) -> tuple[object, ...]:
        entry, is_completed = pair[1], pair[1].state == "completed"
        return entry.group, entry.sequence, entry.operation, entry.sizes, entry.dtype, is_completed

    return [
        (max((entry for _, entry in same), key=lambda entry: entry.ago), [rank for rank, _ in same])
        for _, same in grouped(entries, agreed)
    ]


# -- what the evidence shows of one rank -----------------------------------------------------------------------


def evidence_lines(rank: RankEvidence) -> Iterator[str]:
    """A sentence for each fact, the strongest first, so that a person can check the verdict."""
    if rank.raised:
        yield f"exception: {raised(rank.raised)}"
    if rank.exit:
        asked = " (terminated by the launcher)" if rank.exit.asked else ""
        yield f"end of its process: {ended(rank.exit)}{asked}"
        if rank.exit.core_dump:
            yield f"core dump: {visible(rank.exit.core_dump, 150)}"
    if rank.passed:
        yield f"timeout: {passed(rank.passed)}"
    if rank.process:
        yield from _process(rank, rank.process)
    if rank.board:
        yield from _board(rank.board)
    yield from (f"note: {visible(note)}" for note in rank.notes)


def _process(rank: RankEvidence, process: Process) -> Iterator[str]:
    call_ = visible(process.system_call, 120)
    parts = [
        f"process {rank.pid}",
        state(rank),
        f"system call {call_}" if call_ else "",
        f"kernel function {visible(process.wait_channel, 60)}" if process.wait_channel.strip("0") else "",
    ]
    yield ", ".join(part for part in parts if part)
    if process.sampled_over > 0:
        over, switches = seconds(process.sampled_over), process.switches
        used = f"{process.cpu:.2f} s of processor time within {over} ({switches} switches)"
        yield used if process.cpu or switches else f"no processor time within {over}"
    if process.read and process.read_over:
        yield f"reads {rate(process.read, process.read_over)}: {process.read} bytes within {seconds(process.read_over)}"
    if process.kernel_stack:
        yield "kernel stack: " + visible(" < ".join(process.kernel_stack[:6]), 180)
    if process.network_files:
        yield "open files on network filesystems: " + visible(", ".join(process.network_files[:4]), 150)
    if process.children:
        same = grouped(
            process.children,
            lambda child: f"{visible(child.command, 40)} in state {visible(child.state, 5) or '?'}",
        )
        texts = [
            f"{len(all_)} × {what} (pid {rank_ranges([child.pid for child in all_], 3)})"
            for what, all_ in same
        ]
        yield "child processes: " + "; ".join(texts[:3]) + (" …" if len(texts) > 3 else "")
    if holder := next((thread for thread in rank.stacks if thread.holds_gil), None):
        yield f"thread {visible(holder.name, 60)} holds Python's interpreter lock (GIL)"


def _board(board: BoardFacts) -> Iterator[str]:
    if not board.connected and not board.counted:
        yield f"no report to Holdfast yet, {seconds(board.age)} after its start"
        return
    counts = f"{board.heartbeats} heartbeats" if board.heartbeats else "no heartbeat"
    at = f", last step {board.step}" if board.step is not None else ""
    saved = f", {board.checkpoints} checkpoints" if board.checkpoints else ""
    yield f"last sign of life {seconds(board.silent)} ago ({counts}{at}{saved})"
    if board.sections:
        names = " > ".join(f"{visible(each.name, 40)} ({seconds(each.seconds)})" for each in board.sections)
        yield f"open sections: {names}"
    if board.finished:
        yield "its main thread has ended, or it has reported that it was finished"
    if board.moved:
        yield "made progress during the capture"
