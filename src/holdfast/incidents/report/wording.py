"""The facts of a rank in words: where it is, what its process does, what ended it. Pure.

What always holds: a text from here is one line, has no character that a terminal acts on, and is bounded.

Does not cover: which facts matter; `findings` and `text` choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from holdfast.visible import escaped

from ..evidence import Collective, Exit, Frame, PassedLimit, Raised, RankEvidence
from .frames import place, waits_in
from .grouping import main_thread
from .states import waits

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
        "gone": "gone",
    }
)
"""The one-letter codes of proc(5)."""


def visible(text: str, longest: int = LONGEST) -> str:
    """What came from outside, safe to print and on one line; the middle of a long one is left out."""
    line = escaped(" ".join(text[: 8 * longest].split("\n")).expandtabs(4).replace("\r", ""))
    if len(line) <= longest:
        return line
    half = (longest - 3) // 2
    return f"{line[:half]} … {line[len(line) - half :]}"


def visible_lines(text: str) -> list[str]:
    """The lines of a text from outside, each safe to print."""
    return [visible(line.rstrip()) for line in text.splitlines()]


def end_moment(rank: RankEvidence) -> float:
    """When it began to end: seconds before the evidence was taken, negative after that."""
    times = [found.ago for found in (rank.raised, rank.exit) if found is not None]
    return max(times, default=0.0)


def beside_the_look(ago: float) -> str:
    """`0.05 s before we looked`, `0.1 s after we had looked`."""
    return f"{seconds(ago)} before we looked" if ago >= 0 else f"{seconds(-ago)} after we had looked"


def seconds(value: float) -> str:
    """`31 s`, `1.5 s`, `0.02 s`, `12 min`, `3.5 h`: as many digits as a person reads."""
    if value >= 7200:
        return f"{value / 3600:.1f} h"
    if value >= 600:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s" if value >= 1 else f"{max(value, 0.0):.2f} s"


def call(frame: Frame) -> str:
    """`dataset.py:88 read()`; a native one by its name and library."""
    name = visible(frame.function, 80) + ("" if frame.function.endswith(")") else "()")
    if not frame.file:
        return name
    file = visible(frame.file.rsplit("/", 1)[-1], 60)
    return f"{name} in {file}" if frame.native or not frame.line else f"{file}:{frame.line} {name}"


def who(rank: RankEvidence) -> str:
    """`rank 5 (node gpu-12, pid 4182)`."""
    return f"rank {rank.rank} (node {visible(rank.node, 60)}, pid {rank.pid})"


def sections(rank: RankEvidence) -> str:
    """`step > data_loading`; empty outside of sections."""
    return " > ".join(visible(each.name, 40) for each in (rank.board.sections if rank.board else ()))


def where(rank: RankEvidence) -> str:
    """Its sections and the call that says best where it is: `data_loading > dataset.py:88 read()`."""
    thread = main_thread(rank)
    frames: Sequence[Frame] = thread.frames if thread else ()
    open_collective = under_way(rank)
    if waits(rank) and open_collective:
        inner = visible(open_collective.operation, 60)
    elif waits(rank) and (found := waits_in(frames)):
        inner = visible(found.function, 60)
    else:
        found = place(frames)
        inner = call(found) if found else ""
    return " > ".join(part for part in (sections(rank), inner) if part)


def under_way(rank: RankEvidence) -> Collective | None:
    """The earliest collective operation that it has begun and not completed."""
    begun = [each for each in rank.collectives if each.state != "completed"]
    return max(begun, key=lambda each: each.ago, default=None)


def state(rank: RankEvidence) -> str:
    """`state D (disk wait)`; empty where it is not known."""
    code = rank.process.state if rank.process else ""
    if not code:
        return ""
    return f"state {visible(code, 20)}" + (
        f" ({STATES[code]})" if code in STATES and STATES[code] != code else ""
    )


def step(rank: RankEvidence) -> str:
    """`step 4181`; empty where there was none."""
    return f"step {rank.board.step}" if rank.board and rank.board.step is not None else ""


def stays(rank: RankEvidence) -> str:
    """`for 31 s`: how long it has been in its innermost section, else silent."""
    board = rank.board
    if board is None:
        return ""
    return f"for {seconds(board.sections[-1].seconds if board.sections else board.silent)}"


def passed(limit: PassedLimit) -> str:
    """`no heartbeat for 31.2 s (limit 30.0 s)`."""
    what = {
        "initial_heartbeat": "no first heartbeat",
        "heartbeat": "no heartbeat",
        "section": f"section '{visible(limit.section, 60)}' did not end",
        "out_of_section": "outside of all sections",
    }.get(limit.reason, visible(limit.text or limit.reason, 120))
    return f"{what} for {limit.waited:.1f} s (limit {limit.limit:.1f} s)"


def ended(found: Exit) -> str:
    """How its process ended: the launcher's words, and how we know where memory was short."""
    words = visible(found.meaning, 150) or (
        f"killed by signal {-found.status}" if found.status < 0 else f"exit code {found.status}"
    )
    return f"{words}; out of memory: {visible(found.out_of_memory, 150)}" if found.out_of_memory else words


def raised(error: Raised) -> str:
    """`ValueError: bad batch`."""
    message = visible(error.message, 140)
    return f"{visible(error.type, 60)}: {message}" if message else visible(error.type, 60)


def collective(entry: Collective) -> str:
    """`all_reduce number 1042 of [[1024]] float32 in group default, begun 31 s ago, not completed`."""
    text = f"{visible(entry.operation, 60)} number {entry.sequence}"
    if entry.sizes:
        text += f" of {visible(f'{entry.sizes} {entry.dtype}'.strip(), 80)}"
    if entry.group:
        text += f" in group {visible(entry.group, 40)}"
    done = "completed" if entry.state == "completed" else f"not completed ({visible(entry.state, 30)})"
    return f"{text}, begun {seconds(entry.ago)} ago, {done}"
