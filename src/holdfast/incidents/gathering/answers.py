"""What a rank told, as evidence: the helper thread's answer, and what faulthandler wrote.

Pure, and no text makes it raise. Does not cover: where the texts come from (`asking`, `armed`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ..evidence import Collective, Frame, Thread

MOST_TEXT = 300
_HEADER = re.compile(r"^(?:Stack|(?:Current )?[Tt]hread 0x.*) \(most recent call first\):\s*$")
_FRAME = re.compile(r'^\s+File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)$')


@dataclass(frozen=True, slots=True)
class Answer:
    """The helper thread's. `complete` is False while the flight recorder's part is missing."""

    complete: bool
    threads: tuple[Thread, ...]
    collectives: tuple[Collective, ...] = ()
    no_collectives: str = ""


def answer(text: bytes, question: str, pid: int) -> Answer | None:
    """The answer to this question by this process; None where the text is another's, or none at all."""
    try:
        said = json.loads(text)
        if said["pid"] != pid or question not in said["questions"]:
            return None
        return Answer(
            said["complete"] is True,
            tuple(_thread(each) for each in said["threads"]),
            tuple(one for group in said.get("groups", ()) for one in _collectives(group)),
            str(said.get("no_collectives", ""))[:MOST_TEXT],
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError):
        return None


def dumped_thread(text: str) -> Thread | None:
    """The main thread in what faulthandler wrote after one signal or more; None where there is no frame of it."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if _HEADER.match(line) and frames:
            break  # another signal's, by another asker
        if found := _FRAME.match(line):
            number = int(found[2]) if found[2].isdecimal() and len(found[2]) < 10 else 0
            frames.append(Frame(found[3], found[1] or "", number))
    return Thread("MainThread", tuple(frames), main=True) if frames else None


def _thread(said: dict[str, Any]) -> Thread:
    frames = tuple(Frame(str(name), str(file), int(line)) for name, file, line in said["frames"])
    return Thread(str(said["name"]), frames, main=said["main"] is True)


def _collectives(group: dict[str, Any]) -> list[Collective]:
    members = tuple(int(rank) for rank in group["members"])
    return [
        Collective(
            int(each["sequence"]),
            str(each["operation"]),
            str(group["group"]),
            str(each["sizes"]),
            str(each["dtype"]),
            str(each["state"]),
            float(each["ago"]),
            members,
        )
        for each in group["entries"]
    ]
