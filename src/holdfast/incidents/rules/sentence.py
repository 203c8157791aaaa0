"""Verdicts as sentences: who, where, how many. Pure.

Always holds: a sentence has one line and at most `LONGEST` characters; the culprit is none of its own victims.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from ..evidence import Child, Frame, Process, RankEvidence
from ..verdict import Confidence, Kind, Verdict
from .places import Place, is_own, place_of

LONGEST = 300
_SHOWN = 60
_STATES = {"T": "stopped", "t": "stopped by a tracer", "D": "in state D", "Z": "dead"}


def against(
    culprit: RankEvidence, kind: Kind, text: str, confidence: Confidence, victims: Iterable[int] = ()
) -> Verdict:
    """A verdict on this rank; `text` continues "Rank 3 (node a)"."""
    who = f"Rank {culprit.rank} (node {culprit.node})" if culprit.node else f"Rank {culprit.rank}"
    others = tuple(sorted(set(victims) - {culprit.rank}))
    return Verdict(kind, sentence(f"{who} {text}"), confidence, culprit.rank, culprit.node, others)


def against_nobody(
    kind: Kind, text: str, confidence: Confidence, victims: Iterable[int] = (), node: str = ""
) -> Verdict:
    """A verdict that names no rank."""
    text = sentence(text[:1].upper() + text[1:])
    return Verdict(kind, text, confidence, None, node, tuple(sorted(set(victims))))


def called(frame: Frame) -> str:
    """`dataset.py:88 read()`; the last two parts of a path."""
    file = "/".join(frame.file.replace("\\", "/").split("/")[-2:]) if frame.file else "?"
    line = f":{frame.line}" if frame.line > 0 else ""
    name = frame.function.rsplit(".", 1)[-1]
    return f"{file}{line} {name}{'' if name.startswith('<') else '()'}"


def busy_worker(process: Process | None) -> Child | None:
    """A child that runs the program's own code for a data loader; else the first whose stack is known."""
    known = [child for child in (process.children if process else ()) if child.frames]
    for child in known:
        if any(map(is_own, takewhile(lambda frame: place_of(frame) is not Place.LOADER, child.frames))):
            return child
    return known[0] if known else None


def child_states(process: Process | None, what: str) -> str:
    """`; its worker 4711 is stopped`, of the child that the system call waits for, else the first such."""
    children = process.children if process else ()
    awaited = [child for child in children if process and child.pid == process.system_call.pid]
    stuck = (child for child in awaited or children if child.state[:1] in _STATES)
    return next((f"; its {what} {child.pid} is {_STATES[child.state[:1]]}" for child in stuck), "")


def worker_states(process: Process | None) -> str:
    """Of the first child that cannot run, or the place of a busy one."""
    if found := child_states(process, "worker"):
        return found
    busy = busy_worker(process)
    return f"; its worker {busy.pid} is in {called(busy.frames[0])}" if busy else ""


def ranks(numbers: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 2-5`, `63 ranks`."""
    found = sorted(set(numbers))
    if len(found) == 1:
        return f"rank {found[0]}"
    spans = spans_of(found)
    if not found or len(spans) > 4:
        return f"{len(found)} ranks"
    return "ranks " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def wait(numbers: Iterable[int]) -> str:
    """`rank 3 waits`, `ranks 0, 2-5 wait`."""
    found = set(numbers)
    return f"{ranks(found)} wait{'s' if len(found) == 1 else ''}"


def spans_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of successive numbers."""
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return spans


LONGEST_TIME = 1e9
"""Seconds that are shown at most: evidence may be damaged, and a line is short."""


def seconds(value: float) -> str:
    """`31 s`, `1.5 s`, `0.02 s`, `12 min`, `3.5 h`: as many digits as a person reads."""
    if value >= 7200:
        return f"{min(value, LONGEST_TIME) / 3600:.1f} h"
    if value >= 600:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s" if value >= 1 else f"{max(value, 0.0):.2f} s"


def rate(count: int, over: float) -> str:
    """`640 B/s`, `52.1 KiB/s`, `3.4 MiB/s`: bytes a second."""
    value = count / over
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B/s" if unit == "B" else f"{value:.1f} {unit}/s"
        value /= 1024
    return f"{value:.1f} GiB/s"


def short(text: str, limit: int = _SHOWN) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def sentence(text: str) -> str:
    """One line, with its full stop, of at most `LONGEST` characters."""
    line = short(text, LONGEST)
    return line if line.endswith((".", "…", "!", "?")) else short(line, LONGEST - 1) + "."
